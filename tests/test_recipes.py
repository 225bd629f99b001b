"""The recipes of recipes/ for machines: they are read, fit their devices and, with --release, their
devices' memory.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from experiments.recipe_table import LAYERS, read_found
from experiments.recipes import (
    abstract,
    extrapolated,
    planned,
    read,
    traced_operations,
    training_program,
    without,
)
from jax_lm.cli.arguments.hosts import Hosts
from jax_lm.cli.arguments.training import ModelArguments
from jax_lm.compilation.compiler import SMALLEST_HOST
from jax_lm.config import DIFFUCODER_7B
from jax_lm.data.batches import Row
from jax_lm.models.attention import splash
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.lora import LoraConfig, add_lora, is_lora
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import RESERVED, estimate_memory, parameter_count
from jax_lm.planning.roofline import GIB
from jax_lm.sharding import MeshShape, row_devices
from jax_lm.training import sft, trainer
from jax_lm.training.config import LossConfig, OptimizerConfig, SftConfig, TrainerConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.run_defaults import resolve_grpo

ROOT = Path(__file__).parent.parent
PUBLISHED = read_found()
RECIPES = sorted(
    path for path in (ROOT / "recipes").glob("*.yaml") if "# machine: " in path.read_text()
)
NAMES = ("24gb", "80gb", "h100x8", "v5e-16", "v5p-8", "v6e-16")
for_each = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def test_each_machine_has_a_recipe_of_each_kind():
    assert {path.stem for path in RECIPES} == {
        f"{kind}_{name}" for kind in ("sft", "grpo") for name in NAMES
    }


@for_each
def test_recipe_splits_evenly_over_its_machine(recipe):
    topology, command = read(recipe)
    settings = command.settings
    shape = MeshShape.for_training(DIFFUCODER_7B, topology.devices)
    mesh = jax.sharding.AbstractMesh(tuple(shape.sizes.values()), tuple(shape.sizes))
    parts = settings.training.gradient_accumulation_steps
    if isinstance(settings, GRPOConfig):
        fitted = resolve_grpo(settings, parameter_count(DIFFUCODER_7B), mesh)
        assert fitted.completions == 80
        assert fitted.remat
        assert fitted.completions % (parts * fitted.score_chunk) == 0
    else:
        assert settings.batch_size % (parts * row_devices(mesh)) == 0


@for_each
def test_recipes_of_several_hosts_join_them(recipe):
    """Each process of a pod would train for itself otherwise, and write over the others."""
    topology, command = read(recipe)
    several = topology.is_tpu and topology.devices > SMALLEST_HOST
    assert command.model_arguments.hosts.multi_host == several


def require_compiler(recipe):
    """Skip the test if the compiler for the machine of a recipe is not installed."""
    topology, _ = read(recipe)
    if topology.is_tpu and importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu")
    if not topology.is_tpu and importlib.util.find_spec("jax_cuda12_plugin") is None:
        pytest.skip("needs jax-cuda12-plugin and jax-cuda12-pjrt")
    return topology


@for_each
def test_update_of_a_recipe_fits_its_machine(recipe, for_release):
    """As compiled with two and with three layers and extrapolated, or with all if that is too much."""
    topology = require_compiler(recipe)
    report = compiled_report(recipe, "2", "3")
    total, room = report["total"], (1 - RESERVED) * report["memory"]
    if total > room:
        # With few layers there is memory to spare, which the compiler of GPUs spends.
        total = compiled_report(recipe, "28")["total"]
    assert total <= room, f"{total / GIB:.2f} GiB"
    table = [
        buffer
        for found in report["by_layers"].values()
        for buffer in found["buffers"]
        if is_whole_table(buffer)
    ]
    assert table == []
    # Nothing is extrapolated to less than masters and moments, or the weights below adapters, take.
    kept = {int(layers): found["kept"] for layers, found in report["by_layers"].items()}
    assert extrapolated(kept, 28) > parameter_count(DIFFUCODER_7B) / topology.devices


@pytest.mark.parametrize(
    "recipe", [path for path in RECIPES if path.stem.startswith("sft")], ids=lambda path: path.stem
)
def test_evaluation_of_a_recipe_fits_its_machine(recipe, for_release):
    """The held-out loss, which a run computes with its moments on the device; in one part instead of
    64, that of sft_24gb would take twice its card.
    """
    require_compiler(recipe)
    report = compiled_report(recipe, "2", "3", "--evaluation")
    room = (1 - RESERVED) * report["memory"]
    assert report["total"] <= room, f"{report['total'] / GIB:.2f} GiB"


def compiled_report(recipe, *layers):
    command = [sys.executable, "experiments/recipes.py", str(recipe), "--layers", *layers]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def is_whole_table(buffer):
    """Whether a line such as `2 x product f32[152064,3584]` is of a float32 table of the
    vocabulary.
    """
    sizes = set(re.findall(r"\d+", buffer.partition("[")[2]))
    return (
        "f32[" in buffer
        and {str(DIFFUCODER_7B.vocab_size), str(DIFFUCODER_7B.hidden_size)} <= sizes
    )


def test_extrapolation_is_a_line():
    assert extrapolated({2: 100, 3: 110}, 28) == 360


def test_operations_of_a_loop_that_is_computed_again_are_counted_as_they_run():
    a, b = jnp.ones((4, 5)), jnp.ones((5, 6))
    once = 2 * 4 * 5 * 6

    def looped(a, b):
        step = jax.checkpoint(lambda a: jnp.tanh(a @ b) @ b.T)
        return jnp.sum(jax.lax.scan(lambda a, _: (step(a), None), a, length=3)[0])

    assert traced_operations(jax.make_jaxpr(looped)(a, b)) == 3 * 2 * once
    # Backward: the first product again, as the last of what is computed again is not needed, and
    # two for each of both.
    assert (
        traced_operations(jax.make_jaxpr(jax.grad(looped, (0, 1)))(a, b)) == 3 * (2 + 1 + 4) * once
    )


def test_operations_of_a_kernel_are_counted_for_all_its_blocks():
    q, k = jnp.ones((1, 1024, 2, 128)), jnp.ones((1, 1, 1024, 128))
    mesh = MeshShape().mesh()

    def total(q):
        return jnp.sum(
            jax.shard_map(splash, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(
                q, k, k, None
            )
        )

    product = 2 * 2 * 1024 * 1024 * 128
    assert traced_operations(jax.make_jaxpr(total)(q)) == 2 * product
    # Scores, and what weights change by, are computed for each of the two kernels that give
    # gradients; of each output and its gradient, the sum of products once.
    assert (
        traced_operations(jax.make_jaxpr(jax.grad(total))(q)) == (2 + 3 + 4) * product + 2 * q.size
    )


@pytest.mark.parametrize("recipe", sorted({recipe for recipe, _, _ in PUBLISHED}))
def test_published_figures_of_a_recipe_fit_its_machine(recipe):
    totals = {
        layers: found["kept"] + found["working"]
        for (name, layers, taken_back), found in PUBLISHED.items()
        if name == recipe and not taken_back
    }
    if 28 in totals or len(totals) > 1:
        total = totals.get(28) or extrapolated(totals, 28)
        assert total <= (1 - RESERVED) * PUBLISHED[recipe, 2, ()]["memory"], (
            f"{total / GIB:.2f} GiB"
        )


def test_line_through_two_and_three_layers_hits_what_all_take():
    """Of all but the working memory: where there is room, the compiler of GPUs takes it to hide
    communication.
    """
    few, more, whole = (PUBLISHED["grpo_h100x8.yaml", layers, ()] for layers in (*LAYERS, 28))

    sent = [
        {kind: size for kind, (_, size) in found["collectives"].items()}
        for found in (few, more, whole)
    ]
    assert {
        kind: extrapolated({2: sent[0][kind], 3: sent[1][kind]}, 28) for kind in sent[2]
    } == sent[2]

    def by_line(name):
        return extrapolated({2: few[name], 3: more[name]}, 28)

    assert [by_line(name) for name in ("kept", "operations")] == [
        whole["kept"],
        whole["operations"],
    ]
    traffic = [by_line(name) / whole[name] for name in ("kernels", "read", "written")]
    assert traffic == pytest.approx([1, 1, 1], abs=2e-3)
    assert by_line("working") >= whole["working"]


@pytest.mark.parametrize(
    "name", ["sft_h100x8", "sft_80gb", "sft_v5e-16", "grpo_24gb", "grpo_v5p-8"]
)
def test_estimate_of_an_update_is_near_what_is_compiled(name):
    """Those that docs/results/scale names; of coupled-GRPO on other machines the estimate says too
    little.
    """
    topology, command = read(ROOT / "recipes" / f"{name}.yaml")
    step = planned(command.settings, command.model_arguments)
    if step.kind == "sft":
        step = replace(
            step, batch=step.batch // command.settings.training.gradient_accumulation_steps
        )
    estimate = estimate_memory(
        replace(step, mesh=step.default_mesh(DIFFUCODER_7B, topology.devices))
    )
    found = {layers: PUBLISHED.get((f"{name}.yaml", layers, ())) for layers in (*LAYERS, 28)}
    totals = {layers: at["kept"] + at["working"] for layers, at in found.items() if at}
    assert estimate.total == pytest.approx(totals.get(28) or extrapolated(totals, 28), rel=0.1)


def test_no_device_holds_a_whole_table_in_an_update(for_release):
    """Of the published width, compiled for eight devices; without blocks, the gradient of the head
    is one.
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, __file__],
        cwd=ROOT,
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ours"] == {"f32": 0, "bf16": 0}
    assert found["whole"]["f32"] > 0


def whole_tables() -> dict[str, dict[str, int]]:
    """The child process: counts whole tables in a compiled update of coupled-GRPO."""
    config = replace(DIFFUCODER_7B, num_hidden_layers=1)
    _, command = read(ROOT / "recipes" / "grpo_h100x8.yaml")
    report = {}
    for name, taken_back in (("ours", []), ("whole", ["blocks", "lookup"])):
        model = abstract(config, command.model_arguments, 0)
        model.model.mesh = MeshShape(fsdp=8).mesh()
        # What was traced otherwise is not taken again.
        jax.clear_caches()
        with ExitStack() as stack:
            settings = without(taken_back, command.settings, stack)
            update, shapes = training_program(settings, model)
            text = update.lower(*shapes).compile().as_text()
        arrays = [
            (kind, set(sizes.split(",")))
            for kind, sizes in re.findall(r"\b(f32|bf16)\[([\d,]+)\]", text)
        ]
        table = {str(config.vocab_size), str(config.hidden_size)}
        report[name] = {
            of: sum(kind == of and table <= sizes for kind, sizes in arrays)
            for of in ("f32", "bf16")
        }
    return report


OPTIMIZER = OptimizerConfig(learning_rate=1e-3)


@pytest.mark.parametrize("adapters", [None, LoraConfig(rank=2)])
def test_program_of_coupled_grpo_is_the_one_that_its_trainer_compiles(
    policy, letters, tmp_path, adapters
):
    model = nnx.merge(*nnx.split(policy)).on_mesh(MeshShape().mesh())
    arguments = ModelArguments(lora_rank=2 if adapters else None, hosts=Hosts())
    if adapters:
        add_lora(model, adapters, 0)
    settings = GRPOConfig(
        num_generations=2,
        prompts_per_step=2,
        max_prompt_length=10,
        generation=GenerationOptions(max_new_tokens=8, num_steps=2),
        reward_funcs=("code_format",),
        reward_weights=(1.0,),
        training=TrainerConfig(max_steps=4, optimizer=OPTIMIZER, gradient_accumulation_steps=2),
    )
    trained = is_lora if adapters else lambda name: True
    ours = DiffuGRPOTrainer(
        model, letters, [{"prompt": "ab"}], settings, out=tmp_path, trained=trained
    )
    (batch, _), _ = ours.source.make(ours.source.policy(ours.state.params), 0)
    state = ours.trainer.state
    theirs = ours.trainer.update.lower(
        state.params, state.optimizer, ours.trainer.frozen, np.int32(1), ours.trainer.place(batch)
    )
    shapes = abstract(policy.config, arguments, 0)
    shapes.model.mesh = model.mesh
    update, arrays = training_program(settings, shapes, trained=trained, steps=4)
    assert as_written(update.lower(*arrays)) == as_written(theirs)


def test_program_of_fine_tuning_is_the_one_that_its_trainer_compiles(policy, monkeypatch, tmp_path):
    """The trainer's step is taken as it is called."""
    seen = []
    made = trainer.make_update

    def watched(*arguments, **options):
        update = made(*arguments, **options)
        return lambda *call: (seen.append(as_written(update.lower(*call))), update(*call))[1]

    monkeypatch.setattr(trainer, "make_update", watched)
    model = nnx.merge(*nnx.split(policy)).on_mesh(MeshShape().mesh())
    training = TrainerConfig(max_steps=1, optimizer=OPTIMIZER, gradient_accumulation_steps=2)
    settings = SftConfig(
        max_length=12, batch_size=4, loss=LossConfig(remat=True), training=training
    )
    rows = [Row((1, 2, 3), (False, True, True))] * 8
    assert sft.fine_tune(model, rows, settings, tmp_path, pad_id=0)
    shapes = DreamForCausalLM.abstract(policy.config)
    shapes.model.mesh = model.mesh
    update, arrays = training_program(settings, shapes, steps=1)
    assert seen == [as_written(update.lower(*arrays))]


def as_written(lowered):
    """The program; where scores lie that a program gave is left out, as on one device that may be
    anywhere.
    """
    return re.sub(r"(tensor<4x8xf32>) \{sdy\.sharding = [^}]*\}[^>]*>\}", r"\1", lowered.as_text())


if __name__ == "__main__":
    print(json.dumps(whole_tables()))  # noqa: T201
