"""The text of compiled programs: shapes, operands, what is called."""

import pytest

from experiments.compiled.hlo import ArrayShape, arrays, parse_hlo, parse_shape

TEXT = """\
HloModule jit_run, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }, num_partitions=4

%fused_computation.1 (param_0.2: bf16[512,3584], param_1.1: s32[]) -> bf16[1,3584] {
  %param_0.2 = bf16[512,3584]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1.1 = s32[]{:T(128)} parameter(1)
  ROOT %slice.1 = bf16[1,3584]{1,0:T(8,128)(2,1)S(1)} dynamic-slice(%param_0.2, %param_1.1, %param_1.1)
}

%body.7 (arg.1: (s32[], bf16[512,3584])) -> (s32[], bf16[512,3584]) {
  %arg.1 = (s32[], /*index=1*/bf16[512,3584]{1,0}) parameter(0)
  %gte.1 = s32[] get-tuple-element(%arg.1), index=0
  %gte.2 = bf16[512,3584]{1,0} get-tuple-element(%arg.1), index=1
  ROOT %tuple.1 = (s32[], bf16[512,3584]{1,0}) tuple(%gte.1, %gte.2)
}

%condition.7 (arg.2: (s32[], bf16[512,3584])) -> pred[] {
  %arg.2 = (s32[], bf16[512,3584]{1,0}) parameter(0)
  ROOT %constant.3 = pred[] constant(true)
}

ENTRY %main.9 (Arg_0.1: bf16[512,3584], Arg_1.2: s32[]) -> bf16[1,3584] {
  %Arg_0.1 = bf16[512,3584]{1,0} parameter(0), metadata={op_name="params[\\'model\\'][\\'weight\\']"}
  %Arg_1.2 = s32[] parameter(1), sharding={replicated}, metadata={op_name="state.step"}
  %start = (s32[], bf16[512,3584]{1,0}) tuple(%Arg_1.2, %Arg_0.1)
  %while.1 = (s32[], bf16[512,3584]{1,0}) while(%start), condition=%condition.7, body=%body.7, \
metadata={op_name="jit(run)/while" source_line=3}, backend_config={"known_trip_count":{"n":"8"}}
  %gte.9 = bf16[512,3584]{1,0} get-tuple-element(%while.1), index=1
  ROOT %fusion.3 = bf16[1,3584]{1,0} fusion(%gte.9, %Arg_1.2), kind=kLoop, calls=%fused_computation.1
}
"""


def test_shapes():
    assert parse_shape("f32[]") == ArrayShape("f32", ())
    assert parse_shape("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}") == ArrayShape("bf16", (2, 3), 1)
    nested = parse_shape("((f32[4]{0}, u32[2]), /*index=1*/pred[3]{0}, token[])")
    assert [str(array) for array in arrays(nested)] == ["f32[4]", "u32[2]", "pred[3]", "token[]"]
    assert [array.bytes for array in arrays(nested)] == [16, 8, 3, 0]
    assert ArrayShape("s4", (3,)).bytes == 2
    assert ArrayShape("f8e4m3fn", (5,)).bytes == 5


def test_instructions():
    module = parse_hlo(TEXT)
    assert list(module.computations) == ["fused_computation.1", "body.7", "condition.7", "main.9"]
    assert [each.op_name for each in module.entry.parameters] == [
        "params['model']['weight']",
        "state.step",
    ]
    loop = module.entry.instructions["while.1"]
    assert (loop.trips, loop.computation("body"), loop.computation("condition")) == (
        8,
        "body.7",
        "condition.7",
    )
    assert loop.op_name == "jit(run)/while"
    root = module.entry.root
    assert (root.opcode, root.operands, root.callees) == (
        "fusion",
        ("gte.9", "Arg_1.2"),
        ("fused_computation.1",),
    )
    inner = module.computations["fused_computation.1"].root
    assert next(arrays(inner.shape)).space == 1
    assert [each.opcode for each in module.walk(root)] == [
        "fusion",
        "parameter",
        "parameter",
        "dynamic-slice",
    ]
    assert [each.name for each in module.entry.users["Arg_1.2"]] == ["start", "fusion.3"]


def test_what_is_no_program_is_refused():
    with pytest.raises(
        ValueError, match=r"no ENTRY computation in a text that begins with 'no program'"
    ):
        parse_hlo("no program")


def test_an_instruction_of_several_lines_is_one():
    """As that of a Pallas kernel, which says of itself what it was made with."""
    said = 'custom-call(%Arg_0.1), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={\n'
    said += '"xprof_metadata":"{\\"block_q\\": 512}"\n}}, metadata={op_name="jit(run)/kernel" stack_frame_id=7}\n'
    text = TEXT.replace(
        "  ROOT %fusion.3", f"  %kernel.1 = bf16[512,3584]{{1,0}} {said}  ROOT %fusion.3"
    )
    found = parse_hlo(text).entry
    assert found.root.name == "fusion.3"
    kernel = found.instructions["kernel.1"]
    assert (kernel.target, kernel.op_name, kernel.operands) == (
        "tpu_custom_call",
        "jit(run)/kernel",
        ("Arg_0.1",),
    )
