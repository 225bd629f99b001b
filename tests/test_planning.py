"""Parameters and memory, from the shape alone."""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from cases.reference import GOLDEN
from flax import nnx
from safetensors import safe_open

from jax_lm.cli import main as cli
from jax_lm.cli.main import main
from jax_lm.config import DIFFUCODER_7B
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import DiffuCoderInference
from jax_lm.models import lora
from jax_lm.models.dream import DreamConfig, DreamForCausalLM, parameters
from jax_lm.options import Decoding
from jax_lm.planning.memory import (
    OutOfMemoryError,
    PlannedStep,
    bound,
    cheapest_changes,
    device_bytes,
    estimate_memory,
    fits,
    forward_cost,
    master_bytes,
    offered_precisions,
    parameter_count,
    remedies,
    require_room,
    smallest_topology,
    training_flops,
    working_bytes,
)
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import MeshShape
from jax_lm.training.update import merge_params, partition


def stored_parameters(folder):
    """Elements of all tensors, from the headers of the files."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def test_count_equals_the_tensors_on_disk():
    config = DreamForCausalLM.read_config(GOLDEN / "checkpoint")
    assert parameter_count(config) == stored_parameters(GOLDEN / "checkpoint") == 195_392


def test_count_of_a_tied_model_lacks_the_head(tiny_config):
    tied = DreamConfig.from_dict(tiny_config.to_dict() | {"tie_word_embeddings": True})
    assert parameter_count(tiny_config) - parameter_count(tied) == 96 * 32


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        # rows * (4 bytes * 2 copies * vocabulary + size * 4 copies * hidden): the logits are the
        # widest.
        ({"batch": 2, "canvas": 8}, "float32", 16 * (8 * 96 + 4 * 4 * 32)),
        ({"batch": 2, "canvas": 8}, "bfloat16", 16 * (8 * 96 + 2 * 4 * 32)),
        # A long canvas: 4 heads of attention scores outgrow them.
        ({"batch": 1, "canvas": 64}, "float32", 64 * (8 * 64 * 4 + 4 * 4 * 32)),
    ],
)
def test_working_memory_by_hand(tiny_config, shape, dtype, expected):
    assert working_bytes(tiny_config, dtype, **shape, logit_bytes=2**40) == expected


def test_wide_feed_forward_counts(tiny_config):
    wide = DreamConfig.from_dict(tiny_config.to_dict() | {"intermediate_size": 4096})
    assert working_bytes(wide, "float32", batch=1, canvas=8, logit_bytes=2**40) == 8 * (
        8 * 4096 + 4 * 4 * 32
    )


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "int8", "int4", "fp8"])
def test_weights_on_one_device_are_those_of_the_model(tiny_config, precision):
    # the widths are whole pairs of int4's groups
    config = replace(tiny_config, hidden_size=64, intermediate_size=128)
    planned = PlannedStep(config, precision=precision, canvas=8, new_tokens=4)
    model = DreamForCausalLM.abstract(config, planned.dtype, quantization=planned.quantization)
    wanted = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in parameters(model).values())
    assert device_bytes(planned) == wanted


def test_int4_takes_less_than_0_45_gb_at_the_half_billion_shape():
    """Qwen2.5-0.5B, whose embedding is its head; int8 has both in bfloat16."""
    config = replace(
        DIFFUCODER_7B,
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    int4, int8 = (device_bytes(PlannedStep(config, precision=name)) for name in ("int4", "int8"))
    # kernels and group scales, table, float32 scales, bfloat16 biases and norms
    assert int4 == 357_826_560 * 17 // 32 + 151_936 * 900 + 1_216_512 + 55_296 + 87_808
    assert int4 < 0.45e9 < int8
    assert "int4" in offered_precisions(config)
    assert "int4" not in offered_precisions(replace(config, intermediate_size=4896))
    # a step reads the kernels' halves of bytes, their group scales, and the head
    cost = forward_cost(config, "int4", batch=1, rows=1, canvas=1, head_rows=1)
    assert 0.3e9 < cost.bytes < int4


def test_weights_of_the_published_shape():
    assert device_bytes(PlannedStep(DIFFUCODER_7B)) == 2 * 7_615_616_512
    # Norms lie everywhere; everything else is split in four.
    quarter = (
        device_bytes(PlannedStep(DIFFUCODER_7B, mesh=MeshShape(tensor=4))) - 7_615_616_512 // 2
    )
    assert 0 <= quarter < 2 * (2 * 28 + 1) * 3584
    # With eight, keys and values lie everywhere.
    assert (
        device_bytes(PlannedStep(DIFFUCODER_7B, mesh=MeshShape(tensor=8)))
        > 2 * 7_615_616_512 // 8 + 28 * 3584 * 512 * 2
    )
    assert device_bytes(PlannedStep(DIFFUCODER_7B, precision="int8")) < 0.54 * 2 * 7_615_616_512


def test_bfloat16_needs_more_than_one_small_chip_and_int8_does_not():
    chip = Topology.parse("v5e:1x1")
    assert not fits(estimate_memory(PlannedStep(DIFFUCODER_7B)).total, chip)
    assert fits(estimate_memory(PlannedStep(DIFFUCODER_7B, precision="int8")).total, chip)
    assert smallest_topology(PlannedStep(DIFFUCODER_7B), chip) == (
        Topology.parse("v5e:2x2"),
        MeshShape(tensor=4),
    )
    assert smallest_topology(PlannedStep(DIFFUCODER_7B, precision="int8"), chip) == (
        chip,
        MeshShape(),
    )
    found = cheapest_changes(PlannedStep(DIFFUCODER_7B), chip)
    assert found[0].startswith("--dtype int8 (about 8.")
    assert found[-1] == "--topology v5e:2x2 (mesh tensor=4)"


def test_bound_by_hand():
    chip = Topology.parse("v5e:2x2")
    planned = PlannedStep(DIFFUCODER_7B, canvas=512, new_tokens=256, mesh=MeshShape(tensor=4))
    body, head = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944), 152064 * 3584
    flops = 512 * (2 * body + 4 * 3584 * 512 * 28) + 128 * 2 * head
    found = bound(planned, chip)
    assert found.step.flops == flops // 4
    assert found.seconds == pytest.approx(flops / 4 / 197e12)
    assert (found.limit, found.tokens_per_second) == ("compute", pytest.approx(4 * 197e12 / flops))


def test_canvases_beside_are_computed_too_and_commit_more_than_is_known():
    chip = Topology.parse("h200:1")
    alone, guessed = (
        bound(PlannedStep(DIFFUCODER_7B, extra_canvases=count), chip) for count in (0, 4)
    )
    assert guessed.step.flops == 5 * alone.step.flops
    assert alone.step.bytes < guessed.step.bytes < 1.02 * alone.step.bytes
    assert alone.tokens_per_second == pytest.approx(1 / alone.seconds)
    assert guessed.tokens_per_second is None


def test_cache_makes_steps_cheaper_and_commits_by_probability_have_no_rate():
    chip = Topology.parse("v6e:1x1")
    exact, fast, turbo = (
        bound(PlannedStep(DIFFUCODER_7B, decoding=Decoding(preset=name)), chip)
        for name in ("exact", "fast", "turbo")
    )
    assert fast.step.flops < exact.step.flops / 5
    assert fast.limit == "memory"
    assert turbo.tokens_per_second is None
    keys_and_values = 2 * 28 * 4 * 128 * 512 * 2
    cached = PlannedStep(DIFFUCODER_7B, decoding=Decoding(preset="fast"))
    assert estimate_memory(cached).cache == keys_and_values
    assert estimate_memory(replace(cached, mesh=MeshShape(tensor=4))).cache == keys_and_values // 4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"precision": "int2"}, "dtype='int2'"),
        (
            {"precision": "int4", "kind": "sft", "lora_rank": 4},
            "dtype='int4': must be bf.* sft and grpo int8",
        ),
        (
            {"precision": "fp8", "kind": "grpo", "lora_rank": 4},
            "dtype='fp8': must be bf.* sft and grpo int8",
        ),
        ({"decoding": Decoding(cache="causal")}, "with several blocks at once"),
        ({"decoding": Decoding(active_blocks=2)}, "with several blocks at once"),
        ({"batch": 0}, "batch=0"),
        (
            {"canvas": 8, "new_tokens": 9},
            r"max_new_tokens=9: must lie in \[1, 8\], the length of a row",
        ),
    ],
)
def test_jobs_that_make_no_sense_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        PlannedStep(DIFFUCODER_7B, **fields)


def test_running_out_of_memory_is_answered_with_numbers_and_cheapest_changes(engine, monkeypatch):
    def full(*_, **__):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."
        )
        yield

    monkeypatch.setattr(Sampler, "stream", full)
    with pytest.raises(
        OutOfMemoryError,
        match=r"out of memory: 1 x \d+ tokens in float32 .* --dtype int8 .* together of",
    ):
        engine.generate("def f():", max_new_tokens=32)


def test_running_out_of_memory_while_loading(monkeypatch, builtin_folder):
    def full(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(DreamForCausalLM, "from_pretrained", full)
    with pytest.raises(OutOfMemoryError, match=r"16\.5 MiB of weights.*diffucoder plan"):
        DiffuCoderInference(builtin_folder, verbose=False)


def test_other_errors_of_the_runtime_stay_what_they_are(engine, monkeypatch):
    def broken(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
        yield

    monkeypatch.setattr(Sampler, "stream", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        engine.generate("def f():", max_new_tokens=32)


@pytest.mark.parametrize(("step", "copies"), [("sft", 3), ("adapt", 3), ("grpo", 4)])
def test_training_keeps_three_float32_numbers_per_weight(step, copies):
    """Master and two moments, and the reference of coupled-GRPO."""
    planned = PlannedStep(DIFFUCODER_7B, batch=8, canvas=512, kind=step)
    memory = estimate_memory(planned)
    assert memory.weights == copies * 4 * parameter_count(DIFFUCODER_7B)
    # Gradients in float32, weights and gradients in bfloat16.
    assert memory.working > (4 + 2 + 2) * parameter_count(DIFFUCODER_7B)
    spread = estimate_memory(replace(planned, mesh=MeshShape(fsdp=8)))
    # All but the norms, which lie everywhere.
    assert spread.weights == pytest.approx(memory.weights / 8, rel=1e-3)


def test_training_takes_the_smallest_machine_that_holds_it():
    planned = PlannedStep(DIFFUCODER_7B, batch=8, canvas=2048, kind="sft")
    place, mesh = smallest_topology(planned, Topology.parse("v5p:2x2x1"))
    assert mesh == MeshShape.for_training(DIFFUCODER_7B, place.devices)
    assert not any(
        "int8" in remedy for remedy in cheapest_changes(planned, Topology.parse("v5p:2x2x1"))
    )


def test_an_update_costs_four_forward_passes():
    place = Topology.parse("v5p:2x2x1")
    one = PlannedStep(DIFFUCODER_7B, batch=4, canvas=512, mesh=MeshShape(fsdp=4))
    learnt, one = (bound(each, place) for each in (replace(one, new_tokens=512, kind="sft"), one))
    assert 3.9 < learnt.step.flops / one.step.flops < 4.3
    assert learnt.tokens_per_second == pytest.approx(4 * 512 / learnt.seconds)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "rl"}, "step='rl'"),
        ({"kind": "sft", "precision": "int8"}, "dtype='int8'"),
        ({"kind": "sft", "lora_rank": 0}, "lora_rank=0"),
        ({"lora_rank": 16}, "lora_rank=16: must be at least 1, and step sft, adapt or grpo"),
    ],
)
def test_a_training_step_that_is_not_there_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PlannedStep(DIFFUCODER_7B, **fields)


def test_an_update_that_exceeds_the_free_memory_is_refused_with_numbers(tiny_config):
    planned = PlannedStep(tiny_config, kind="adapt", batch=8, canvas=64, new_tokens=64)
    need = estimate_memory(planned)
    for free in (None, need.total):
        require_room(planned, free)
    with pytest.raises(OutOfMemoryError, match=r"8 x 64 tokens.*--batch-size 4 \(about"):
        require_room(planned, need.total - 1)


# Shape, update, and GB of the process at its peak, as measured (docs/training.md).
QWEN = DreamConfig(
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    max_position_embeddings=32768,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
SMOL = replace(
    QWEN,
    model_type="llama",
    vocab_size=49216,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
)
MEASURED = [
    (QWEN, {"kind": "sft", "batch": 8, "canvas": 64, "new_tokens": 64, "lora_rank": 8}, 3.71),
    (QWEN, {"kind": "adapt", "batch": 2}, 14.21),
    (
        SMOL,
        {"kind": "adapt", "batch": 8, "canvas": 128, "new_tokens": 128, "precision": "float32"},
        5.37,
    ),
]


@pytest.mark.parametrize(("config", "step", "measured"), MEASURED)
def test_an_update_on_a_cpu_takes_what_was_measured(config, step, measured):
    planned = PlannedStep(config, on_cpu=True, **step)
    found = estimate_memory(planned).total / 1e9
    assert found == pytest.approx(measured, rel=0.15)


def test_this_machine_can_be_planned_for(capsys):
    words = [
        "plan",
        "--model-config",
        "small",
        "--topology",
        "cpu",
        "--step",
        "adapt",
        "--estimate",
    ]
    assert main([*words, "--batch-size", "8"]) == 0
    printed = capsys.readouterr().out
    assert "one adapt update of all weights" in printed
    assert "not known of this machine" in printed
    assert main([*words, "--batch-size", "1000000"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_the_built_in_model_can_be_planned_for(capsys):
    words = ["plan", "--topology", "cpu", "--estimate"]
    assert main([*words, "--model", "builtin"]) == 0
    assert "8.3 MiB" in capsys.readouterr().out
    assert main(words) == 2
    assert "model, model_config: give one of them" in capsys.readouterr().err


def test_adapters_take_their_own_masters_and_the_weights_below_them_once(tiny_config):
    for precision in ("bfloat16", "int8"):
        planned = PlannedStep(
            tiny_config,
            precision=precision,
            batch=2,
            canvas=8,
            new_tokens=4,
            kind="sft",
            lora_rank=4,
        )
        model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))
        lora.add_lora(model, lora.LoraConfig(rank=4), seed=0)
        adapters = sum(
            4 * leaf.size for name, leaf in parameters(model).items() if lora.is_lora(name)
        )
        frozen = device_bytes(planned)
        assert estimate_memory(planned).weights == frozen + 3 * adapters
        assert master_bytes(planned) == adapters


def test_adapters_cost_three_forward_passes_and_are_what_to_try_where_an_update_does_not_fit():
    place, full = (
        Topology.parse("h100:1"),
        PlannedStep(DIFFUCODER_7B, batch=1, canvas=512, new_tokens=512, kind="sft"),
    )
    learnt = bound(replace(full, lora_rank=16), place)
    assert 2.9 < learnt.step.flops / bound(replace(full, kind="generate"), place).step.flops < 3.3
    assert not fits(estimate_memory(full).total, place)
    assert cheapest_changes(full, place)[0].startswith("--lora-rank 16 (about ")


@pytest.mark.parametrize("all_weights", [True, False])
def test_operations_of_a_gradient_are_those_of_its_program(all_weights):
    """XLA counts those of the program before it is compiled, with all that is elementwise, which is
    little.
    """
    shape = DreamConfig(
        vocab_size=768,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=0,
    )
    model = DreamForCausalLM(shape, rngs=nnx.Rngs(0))
    if not all_weights:
        lora.add_lora(model, lora.LoraConfig(rank=1), seed=0)
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    ours, others = partition(params, lambda name: all_weights or lora.is_lora(name))
    tokens = jnp.zeros((2, 96), jnp.int32)

    def loss(ours):
        return nnx.merge(graph, merge_params(others, ours))(tokens).astype(jnp.float32).sum()

    counted = jax.jit(jax.grad(loss)).lower(ours).cost_analysis()["flops"]
    told = training_flops(shape, 96, 96, all_weights=all_weights) * tokens.size
    assert counted == pytest.approx(told, rel=0.06)


@pytest.mark.parametrize(
    ("topology", "slots", "context", "status"),
    [("h100:1", 16, 2048, 0), ("rtx4090:1", 8, 2048, 0), ("v5e:1x1", 1, 384, 1)],
)
def test_the_plan_of_a_server_says_what_fits(topology, slots, context, status, capsys):
    command = ["plan", "--model-config", "7b", "--topology", topology, "--step", "serve", "--json"]
    assert cli.main(command) == status
    record = json.loads(capsys.readouterr().out)
    assert (record["slots"], record["context"]) == (slots, context)
    assert record["verdict"] == ("does not fit" if status else "fits")


def test_each_adapter_of_a_server_has_caches(capsys):
    command = ["plan", "--model-config", "7b", "--topology", "h100:1", "--json"]
    caches = []
    for count in ("0", "3"):
        assert cli.main([*command, "--step", "serve", "--served-adapters", count]) == 0
        caches.append(float(json.loads(capsys.readouterr().out)["caches"].split()[0]))
    assert caches[1] == pytest.approx(4 * caches[0], abs=0.03)
    assert cli.main([*command, "--served-adapters", "3"]) == 2
    assert "served_adapters=3: must be 0 but for step='serve'" in capsys.readouterr().err


def test_the_plan_of_a_server_is_written_and_takes_no_sizes(capsys, tmp_path):
    out = tmp_path / "plan.json"
    command = ["plan", "--model-config", "7b", "--topology", "h100:1", "--step", "serve"]
    assert cli.main([*command, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["slots"] == 16
    assert "slots    16" in capsys.readouterr().out
    for words, given in (
        (("--batch-size", "9"), "batch_size=9"),
        (("--max-length", "1024"), "max_length=1024"),
        (("--mesh", "tensor=2"), "mesh='tensor=2'"),
        (("--lora-rank", "8"), "lora_rank=8"),
    ):
        assert cli.main([*command, *words]) == 2
        assert f"{given}: must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "settings", "advised"),
    [
        ("adapt", {}, "Try --lora-rank 16 ("),
        ("adapt", {"lora_rank": 8}, "Try --batch-size 4 ("),
        ("sft", {}, "Try --lora-rank 16 ("),
        ("sft", {"lora_rank": 8}, "Try --quantize int8 ("),
        ("generate", {}, "or prompt and answer together of 256 ("),
        ("grpo", {}, "or prompt and answer together of 256 ("),
    ],
)
def test_advice_names_options_that_the_command_has(kind, settings, advised):
    planned = PlannedStep(DIFFUCODER_7B, kind=kind, batch=8, **settings)
    assert advised in remedies(planned)
