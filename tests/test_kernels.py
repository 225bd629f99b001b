"""Kernels of programs as the compilers of TPUs and GPUs print them: what is read, where it comes
from, how often.
"""

from experiments.compiled.hlo import parse_hlo
from experiments.compiled.kernels import Tracer

PREFETCH = """\
HloModule prefetch, is_scheduled=true

%fused (a: bf16[8,128], w: bf16[256,128]) -> bf16[8,256] {
  %a = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %w = bf16[256,128]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %dot = bf16[8,256]{1,0:T(8,128)(2,1)} convolution(%a, %w), dim_labels=bf_oi->bf
}

ENTRY %main (x: bf16[8,128], w: bf16[256,128]) -> bf16[8,256] {
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="state.x"}
  %w = bf16[256,128]{1,0:T(8,128)(2,1)} parameter(1), metadata={op_name="params['w']"}
  %start = (bf16[256,128]{1,0:T(8,128)(2,1)S(1)}, bf16[256,128]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%w)
  %done = bf16[256,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
  ROOT %fusion.1 = bf16[8,256]{1,0:T(8,128)(2,1)} fusion(%x, %done), kind=kOutput, calls=%fused
}
"""

RENAMED = """\
HloModule renamed, is_scheduled=true

%renamed (w: bf16[2,128,128]) -> bf16[256,128] {
  %w = bf16[2,128,128]{2,1,0} parameter(0)
  ROOT %bitcast = bf16[256,128]{1,0} bitcast(%w)
}

%spread (d: bf16[8,256]) -> bf16[8,2,128] {
  %d = bf16[8,256]{1,0} parameter(0)
  ROOT %bitcast.1 = bf16[8,2,128]{2,1,0} bitcast(%d)
}

%fused (a: bf16[8,128], w: bf16[2,128,128]) -> bf16[8,2,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  %w = bf16[2,128,128]{2,1,0} parameter(1)
  %bitcast_fusion = bf16[256,128]{1,0} fusion(%w), kind=kLoop, calls=%renamed
  %dot = bf16[8,256]{1,0} convolution(%a, %bitcast_fusion), dim_labels=bf_oi->bf
  ROOT %bitcast_fusion.1 = bf16[8,2,128]{2,1,0} fusion(%dot), kind=kLoop, calls=%spread
}

ENTRY %main (x: bf16[8,128], w: bf16[2,128,128]) -> bf16[8,2,128] {
  %x = bf16[8,128]{1,0} parameter(0), metadata={op_name="state.x"}
  %w = bf16[2,128,128]{2,1,0} parameter(1), metadata={op_name="params['w']"}
  ROOT %fusion.1 = bf16[8,2,128]{2,1,0} fusion(%x, %w), kind=kOutput, calls=%fused
}
"""

BRANCHES = """\
HloModule branches

%few (p: (f32[4,64], f32[1000,64])) -> f32[4,1000] {
  %p = (f32[4,64], f32[1000,64]) parameter(0)
  %x = f32[4,64] get-tuple-element(%p), index=0
  %w = f32[1000,64] get-tuple-element(%p), index=1
  %slice = f32[2,64] slice(%x), slice={[0:2], [0:64]}
  %gemm = (f32[2,1000], s8[64]) custom-call(%slice, %w), custom_call_target="__cublas$gemm"
  %result = f32[2,1000] get-tuple-element(%gemm), index=0
  %zero = f32[] constant(0)
  ROOT %pad = f32[4,1000] pad(%result, %zero), padding=0_2x0_0
}

%many (p: (f32[4,64], f32[1000,64])) -> f32[4,1000] {
  %p = (f32[4,64], f32[1000,64]) parameter(0)
  %x = f32[4,64] get-tuple-element(%p), index=0
  %w = f32[1000,64] get-tuple-element(%p), index=1
  %gemm = (f32[4,1000], s8[64]) custom-call(%x, %w), custom_call_target="__cublas$gemm"
  %first = f32[4,1000] get-tuple-element(%gemm), index=0
  %again = (f32[4,1000], s8[64]) custom-call(%x, %w), custom_call_target="__cublas$gemm"
  %second = f32[4,1000] get-tuple-element(%again), index=0
  ROOT %add = f32[4,1000] add(%first, %second)
}

%rewrite (c: f32[128,64], u: f32[4,64], i: s32[]) -> f32[128,64] {
  %c = f32[128,64] parameter(0)
  %u = f32[4,64] parameter(1)
  %i = s32[] parameter(2)
  ROOT %dus = f32[128,64] dynamic-update-slice(%c, %u, %i, %i)
}

%body (carry: (s32[], f32[128,64], f32[4,64], f32[1000,64])) -> (s32[], f32[128,64], f32[4,64], f32[1000,64]) {
  %carry = (s32[], f32[128,64], f32[4,64], f32[1000,64]) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %c = f32[128,64] get-tuple-element(%carry), index=1
  %x = f32[4,64] get-tuple-element(%carry), index=2
  %w = f32[1000,64] get-tuple-element(%carry), index=3
  %fusion = f32[128,64] fusion(%c, %x, %i), kind=kLoop, calls=%rewrite
  %scores = f32[4,128] dot(%x, %fusion), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %given = (f32[4,64], f32[1000,64]) tuple(%x, %w)
  %logits = f32[4,1000] conditional(%i, %given, %given), branch_computations={%few, %many}
  ROOT %next = (s32[], f32[128,64], f32[4,64], f32[1000,64]) tuple(%i, %fusion, %x, %w)
}

%goes_on (carry: (s32[], f32[128,64], f32[4,64], f32[1000,64])) -> pred[] {
  %carry = (s32[], f32[128,64], f32[4,64], f32[1000,64]) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (c: f32[128,64], x: f32[4,64], w: f32[1000,64]) -> f32[128,64] {
  %c = f32[128,64] parameter(0), metadata={op_name="cache"}
  %x = f32[4,64] parameter(1), metadata={op_name="x"}
  %w = f32[1000,64] parameter(2), metadata={op_name="params['lm_head']"}
  %i = s32[] constant(0)
  %start = (s32[], f32[128,64], f32[4,64], f32[1000,64]) tuple(%i, %c, %x, %w)
  %while = (s32[], f32[128,64], f32[4,64], f32[1000,64]) while(%start), condition=%goes_on, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  ROOT %end = f32[128,64] get-tuple-element(%while), index=1
}
"""


def traced(text, **options):
    module = parse_hlo(text)
    tracer = Tracer(module, **options)
    kernels, value = tracer.run(module.entry, [each.op_name for each in module.entry.parameters])
    return tracer, kernels, value


def test_what_is_fetched_into_a_chips_own_memory_is_read_once():
    _, kernels, _ = traced(PREFETCH, is_tpu=True)
    assert [(kernel.kind, kernel.reads, kernel.written) for kernel in kernels] == [
        ("copy", (("params['w']", 2 * 256 * 128),), 0),
        ("product", (("state.x", 2 * 8 * 128), ("params['w']", 0)), 2 * 8 * 256),
    ]
    assert all(kernel.moved == () for kernel in kernels)


def test_what_a_fusion_inside_a_fusion_renames_is_read_and_written():
    module = parse_hlo(RENAMED)
    (kernel,), _ = Tracer(module, is_tpu=True).run(module.entry, ["x", "w"])
    assert dict(kernel.reads) == {"x": 8 * 128 * 2, "w": 256 * 128 * 2}
    assert (kernel.kind, kernel.written) == ("product", 8 * 256 * 2)


def test_memory_of_a_chip_is_that_of_tpus_alone():
    _, kernels, _ = traced(PREFETCH)
    assert (
        sum(size for kernel in kernels for origin, size in kernel.reads if origin == "params['w']")
        == 4 * 256 * 128
    )
    assert kernels[0].moved == ("params['w']",)


def test_loops_branches_and_updates_in_place():
    tracer, kernels, value = traced(BRANCHES)
    step = tracer.loops["while"].kernels
    assert [kernel.kind for kernel in step] == ["other", "product", "product", "product", "other"]
    rewriting, attending, first, second, _ = step
    assert (rewriting.reads, rewriting.written) == (
        (("cache", 0), ("x", 4 * 4 * 64), (None, 4)),
        4 * 4 * 64,
    )
    assert dict(attending.reads) == {"x": 4 * 4 * 64, "cache": 4 * 128 * 64}
    # The branch that moves more counts; it reads the head twice.
    assert (
        dict(first.reads)
        == dict(second.reads)
        == {"x": 4 * 4 * 64, "params['lm_head']": 4 * 1000 * 64}
    )
    assert [kernel.times for kernel in kernels] == [3] * len(step)
    assert tracer.loops["while"].trips == 3
    assert value == "cache"


def test_a_loop_of_unknown_length_counts_once():
    tracer, kernels, _ = traced(BRANCHES.replace('"known_trip_count":{"n":"3"}', ""))
    assert [kernel.times for kernel in kernels] == [1] * 5
    assert tracer.loops["while"].trips is None
