"""What the recipes of recipes/ take on their machines, from XLA's own plan of their updates;
nothing is computed.

    python experiments/recipes.py recipes/sft_v5e-16.yaml recipes/grpo_v5e-16.yaml --layers 2 3
    python experiments/recipes.py recipes/grpo_h100x8.yaml --without remat blocks lookup
    python experiments/recipes.py recipes/sft_24gb.yaml --evaluation

Reads each recipe as `diffucoder` does and compiles its update at full width for the machine that it
names, with so many layers; what all 28 take follows along a line. Needs the compiler: extra `plan`
for TPUs, `plan-gpu` for GPUs. Prints a JSON object per recipe; `experiments/recipe_table.py` makes
the table of docs/results/scale of them.
"""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from experiments.compiled.explanation import Explanation, StepShape, explain
from jax_lm.cli import main as cli
from jax_lm.cli.arguments.training import ModelArguments
from jax_lm.cli.commands.training import lora_config
from jax_lm.compilation import compiler
from jax_lm.compilation.programs import place_on
from jax_lm.config import DIFFUCODER_7B, DreamConfig
from jax_lm.data.batches import Batch
from jax_lm.models import attention, dream, token_likelihood
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.graph import ModelGraph, split_model
from jax_lm.models.lora import add_lora, is_lora
from jax_lm.planning.memory import PlannedStep, bound, master_bytes
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import MeshShape, row_devices, row_spec, shard_rows, tree_shardings
from jax_lm.training.config import AdaptConfig, SftConfig
from jax_lm.training.coupled_grpo import grpo_loss
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.masked_diffusion import diffusion_loss, held_out_terms
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.prompt_set import WIDTH_BUCKET
from jax_lm.training.rollout_source import MaskedRows, PolicyBatch, make_scorer
from jax_lm.training.run_defaults import resolve_grpo, resolve_remat, resolve_trainer, weight_count
from jax_lm.training.update import in_dtype, make_update, partition

Settings = SftConfig | AdaptConfig | GRPOConfig

MACHINE = re.compile(r"^# machine: (\S+)$", re.MULTILINE)
SAVINGS = ("remat", "blocks", "lookup", "attention")
LISTED = 8


def read(recipe: Path) -> tuple[Topology, Any]:
    """Read a recipe: its machine, and the command that it gives."""
    found = MACHINE.search(recipe.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{recipe}: has no line '# machine: TOPOLOGY'")
    command = recipe.name.partition("_")[0]
    return Topology.parse(found[1]), cli.parse(
        [command, "--config", str(recipe), "--data", "data", "--out", "out"]
    )


def abstract(config: DreamConfig, arguments: ModelArguments, seed: int) -> DreamForCausalLM:
    """Make the model of a recipe with shapes in place of arrays: float32 masters, or what is below
    adapters.
    """
    adapters = lora_config(arguments)

    def build() -> DreamForCausalLM:
        model = DreamForCausalLM(config, dtype="float32" if adapters is None else "bfloat16")
        if arguments.quantize == "int8":
            model.quantize("int8")
        if adapters is not None:
            add_lora(model, adapters, seed)
        return model

    return nnx.eval_shape(build)


def planned(settings: Settings, arguments: ModelArguments) -> PlannedStep:
    """Describe the update of a recipe to `jax_lm.planning.memory`."""
    precision = "int8" if arguments.quantize == "int8" else "bfloat16"
    if isinstance(settings, GRPOConfig):
        new = settings.generation.max_new_tokens
        width = settings.max_prompt_length + -settings.max_prompt_length % WIDTH_BUCKET
        rows = {
            "kind": "grpo",
            "batch": settings.completions,
            "canvas": width + new,
            "new_tokens": new,
        }
    else:
        rows = {"kind": "sft", "batch": settings.batch_size, "canvas": settings.max_length}
    return PlannedStep(DIFFUCODER_7B, precision=precision, lora_rank=arguments.lora_rank, **rows)


def without(savings: list[str], settings: Settings, stack: ExitStack) -> Settings:
    """Take back what saves memory: layers computed again, the head in blocks, the embedding looked
    up in its parts, attention that does not write its scores."""
    if "blocks" in savings:
        stack.enter_context(patch.object(token_likelihood, "LOGIT_BYTES", 2**62))
    if "lookup" in savings:
        stack.enter_context(patch.object(dream, "lookup", gathered))
    if "attention" in savings:
        stack.enter_context(patch.object(attention, "choose_attention", lambda *_: None))
    if "remat" not in savings:
        return settings
    if isinstance(settings, GRPOConfig):
        return replace(settings, remat=False)
    return replace(settings, loss=replace(settings.loss, remat=False))


def gathered(table: Array, ids: Array, mesh: Mesh | None) -> Array:
    """Look tokens up by a plain gather, with the result split by rows."""
    return shard_rows(table[shard_rows(ids, mesh)], mesh)


def compiled(
    recipe: Path, layers: int, savings: list[str], *, evaluation: bool = False
) -> dict[str, Any]:
    """Compile the update of a recipe with so many layers; figures of one device, and seconds of the
    compiler.

    Args:
        recipe: file of the recipe.
        layers: layers of the model.
        savings: what is taken back, of `SAVINGS`.
        evaluation: compile the held-out loss instead. What an update keeps on the device is kept
            then too.
    """
    topology, command = read(recipe)
    config, arguments = replace(DIFFUCODER_7B, num_hidden_layers=layers), command.model_arguments
    shape = (
        MeshShape.parse(arguments.mesh)
        if arguments.mesh
        else MeshShape.for_training(config, topology.devices)
    )
    model = abstract(config, arguments, command.settings.training.seed)
    model.model.mesh = compiler.topology_mesh(topology, shape)
    trained = is_lora if arguments.lora_rank else lambda name: True
    with ExitStack() as stack:
        settings = without(savings, command.settings, stack)
        program, shapes = training_program(settings, model, trained=trained)
        moments = bytes_of(shapes[1])
        if evaluation:
            program, shapes = evaluation_program(settings, model, shapes)
        traced = program.trace(*shapes)
    start = time.monotonic()
    executable = compiler.compile_lowered(traced.lower())
    seconds = time.monotonic() - start
    kept, working = compiler.memory_of(executable)
    # The moments lie on the device while the held-out loss is computed.
    kept += moments if evaluation else 0
    kept += reference_bytes(command, config, shape)
    about = StepShape(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        memory=topology.chip.memory,
        in_loop=False,
    )
    least = bound(replace(planned(settings, arguments), mesh=shape), topology).step
    return {
        "mesh": str(shape),
        "kept": kept,
        "working": working,
        "seconds": round(seconds),
        "operations": traced_operations(traced.jaxpr) // topology.devices,
        "least_operations_all": least.flops,
        "least_bytes_all": least.bytes,
        **figures(explain(executable.as_text() or "", about)),
    }


def reference_bytes(command: Any, config: DreamConfig, shape: MeshShape) -> int:
    """Return the bytes of the reference policy, which lies on the device during an update as well."""
    settings = command.settings
    if not isinstance(settings, GRPOConfig) or not settings.loss.beta:
        return 0
    return master_bytes(
        replace(planned(settings, command.model_arguments), config=config, mesh=shape)
    )


def figures(found: Explanation) -> dict[str, Any]:
    """Sum up what the compiler has made of an update."""
    collectives: dict[str, list[int]] = {}
    for each in found.collectives:
        kind = each.what.removesuffix("-start")
        count, size = collectives.get(kind, (0, 0))
        collectives[kind] = [count + int(each.count), size + int(each.count) * each.bytes]
    large = [
        f"{each.count:g} x {each.what} {each.shape}"
        for each in found.buffers
        if each.source != "argument"
    ]
    return {
        "kernels": found.launches,
        "collectives": collectives,
        "read": found.read,
        "written": found.written,
        "unknown_loops": len(found.unknown_loops),
        "buffers": large[:LISTED],
    }


def training_program(
    settings: Settings,
    model: DreamForCausalLM,
    *,
    trained: Callable[[str], bool] = lambda name: True,
    steps: int = 1000,
) -> tuple[Any, tuple]:
    """Return the jitted update of a run, and its arguments as shapes with shardings.

    The program is exactly the one that `masked_diffusion.train` and `DiffuGRPOTrainer` compile for
    the same settings.

    Args:
        settings: settings of the run.
        model: abstract model, with its adapters and its mesh.
        trained: whether a parameter is trained, by its checkpoint name.
        steps: steps of the learning rate schedule if the settings have no `max_steps`. The cost of
            an update does not depend on their number.

    Raises:
        ValueError: the settings do not fit the mesh, or the model has no mask token.
    """
    if model.mesh is None or model.config.mask_token_id is None:
        raise ValueError(
            f"mesh={model.mesh}, mask_token_id={model.config.mask_token_id}: must be given"
        )
    # settings that depend on the size of the model
    mesh, (graph, weights) = model.mesh, split_model(model)
    count = weight_count(weights)
    # compute dtype: bfloat16 for large models
    training = resolve_trainer(settings.training, count)
    dtype = training.dtype
    # policy gradient, or the masked-diffusion loss
    if isinstance(settings, GRPOConfig):
        loss, batch = policy_update(graph, model, resolve_grpo(settings, count, mesh))
    else:
        loss, batch = diffusion_update(graph, model, settings, count)
    # shapes of the parameters: trained ones are float32 masters, all others are in the dtype
    masters, others = partition(weights, trained)
    float32 = jax.eval_shape(
        lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree), masters
    )
    frozen = jax.eval_shape(lambda tree: in_dtype(tree, dtype), others)
    transform = make_optimizer(training.optimizer, training.max_steps or steps)
    optimizer = jax.eval_shape(transform.init, float32)
    # the update itself, and its arguments with shardings
    places = [tree_shardings(tree, model.config, mesh) for tree in (float32, optimizer, frozen)]
    # Donated arguments keep their placement: (masters, optimizer state).
    update = make_update(
        loss,
        transform,
        schedule(training.optimizer, training.max_steps or steps, training.optimizer.learning_rate),
        parts=training.gradient_accumulation_steps,
        dtype=dtype,
        seed=training.seed,
        placement=(places[0], places[1]),
    )
    step = jax.ShapeDtypeStruct((), jnp.int32)
    arguments = [
        place_on(tree, shardings)
        for tree, shardings in zip((float32, optimizer, frozen), places, strict=True)
    ]
    return update, (*arguments, step, batch)


def evaluation_program(
    settings: Settings, model: DreamForCausalLM, shapes: tuple
) -> tuple[Any, tuple]:
    """Return the jitted held-out loss of a run, and its arguments as shapes with shardings.

    Args:
        settings: settings of the run.
        model: abstract model, with its adapters and its mesh.
        shapes: arguments of its update, from `training_program`.

    Raises:
        ValueError: the run has no held-out loss, as coupled-GRPO samples answers instead.
    """
    if isinstance(settings, GRPOConfig):
        raise ValueError("evaluation: coupled-GRPO evaluates by answers, not by a loss")
    graph, weights = split_model(model)
    count = weight_count(weights)
    loss, batch = diffusion_update(graph, model, settings, count)
    training = resolve_trainer(settings.training, count)
    # The run hands it arrays of the host, whose placement the compiler chooses.
    rows = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), batch)
    program = held_out_terms(loss, training.dtype, training.gradient_accumulation_steps)
    masters, _, frozen, step, _ = shapes
    return program, (masters, frozen, rows, step)


def bytes_of(tree: Any) -> int:
    """Sum up the bytes of arrays on one device, given their shapes and shardings."""
    return sum(
        math.prod(each.sharding.shard_shape(each.shape)) * each.dtype.itemsize
        for each in jax.tree.leaves(tree)
    )


def diffusion_update(
    graph: ModelGraph, model: DreamForCausalLM, settings: SftConfig | AdaptConfig, count: int
) -> tuple[Any, Batch]:
    """Return the loss of fine-tuning or adaptation, and a batch sharded by rows."""
    # Adaptation always packs: its rows are cut from the concatenated texts.
    is_adapted = isinstance(settings, AdaptConfig)
    # packed rows hold several texts, so that attention needs a mask per query
    packed = is_adapted or settings.packed
    loss = resolve_remat(settings.loss, count)
    loss = diffusion_loss(
        graph.definition, replace(loss, masks_per_query=packed), model.config.mask_token_id or 0
    )
    # The batch is filled up to a multiple of the accumulation steps and devices: 6 rows on 4
    # devices are 8.
    multiple = settings.training.gradient_accumulation_steps * row_devices(model.mesh)
    rows = settings.batch_size + -settings.batch_size % multiple
    shape = (rows, settings.max_length)
    # Only attention annealing needs the openness of the rows.
    opens = is_adapted and settings.opening_steps > 0
    arrays: Any = (
        jax.ShapeDtypeStruct(shape, jnp.int32),
        jax.ShapeDtypeStruct(shape, jnp.bool_),
        jax.ShapeDtypeStruct(shape, jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.float32) if opens else None,
    )
    assert model.mesh is not None
    return loss, place_on(Batch(*arrays), NamedSharding(model.mesh, row_spec(rows, model.mesh)))


def policy_update(
    graph: ModelGraph, model: DreamForCausalLM, settings: GRPOConfig
) -> tuple[Any, PolicyBatch]:
    """Return the loss of coupled-GRPO, and a batch that is replicated on every device."""
    assert model.mesh is not None
    rows, new_tokens = settings.completions, settings.generation.max_new_tokens
    score = make_scorer(graph, model.config.mask_token_id or 0, settings)
    # prompts are padded to a multiple of the bucket: 500 -> 512 with WIDTH_BUCKET = 32
    width = settings.max_prompt_length + -settings.max_prompt_length % WIDTH_BUCKET

    # one row per completion: [completions, prompt width + new tokens]
    def make_batch() -> PolicyBatch:
        tokens = jnp.zeros((rows, width + new_tokens), jnp.int32)
        scores = jnp.zeros((rows, new_tokens))
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), rows))
        # commit steps exist only for masks that follow the order of decoding
        steps = scores.astype(jnp.int32) if settings.masks.reads_steps else None
        return PolicyBatch(
            MaskedRows(tokens, tokens.astype(bool), scores.astype(bool), keys, steps),
            old_scores=scores if settings.num_iterations > 1 else None,
            reference_scores=scores if settings.loss.beta else None,
            advantages=scores[:, 0],
        )

    batch = place_on(jax.eval_shape(make_batch), NamedSharding(model.mesh, PartitionSpec()))
    return grpo_loss(score, settings), batch


def traced_operations(jaxpr: Any) -> int:
    """Count the multiplications and additions of all products of a program, on all devices
    together.
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return sum(operations(equation) for equation in jaxpr.eqns)


def operations(equation: Any) -> int:
    """Count those of one equation, and of what it runs; of branches, those of the one with most."""
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        return 2 * depth * math.prod(equation.outvars[0].aval.shape)
    inner = [traced_operations(each) for each in programs(equation.params.values())]
    if equation.primitive.name == "cond":
        return max(inner)
    return runs(equation) * sum(inner)


def runs(equation: Any) -> int:
    """Count how often an equation runs its programs: those of a loop, of a kernel for its blocks,
    of each device.
    """
    given = equation.params
    if equation.primitive.name == "scan":
        return given["length"]
    if equation.primitive.name == "pallas_call":
        return math.prod(given["grid_mapping"].grid)
    return given["mesh"].size if equation.primitive.name == "shard_map" else 1


def programs(values: Any) -> Iterator[Any]:
    """Yield the programs among the parameters of an equation."""
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from programs(value)


def extrapolated(found: dict[int, int], layers: int) -> int:
    """Go on along the line through what two numbers of layers take."""
    (few, at_few), (more, at_more) = sorted(found.items())[:2]
    return at_few + (layers - few) * (at_more - at_few) // (more - few)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", type=Path, nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument(
        "--without", choices=SAVINGS, nargs="+", default=[], help="compile as if it did not exist"
    )
    parser.add_argument(
        "--evaluation", action="store_true", help="compile the held-out loss instead of the update"
    )
    arguments = parser.parse_args()
    if min(arguments.layers) < 1:
        parser.error(f"--layers {min(arguments.layers)}: must be at least 1")
    for recipe in arguments.recipes:
        if not recipe.is_file():
            parser.error(f"{recipe}: is no file; the recipes lie in recipes/")
    for recipe in arguments.recipes:
        topology, _ = read(recipe)
        compiler.prepare_compiler(topology)
        found = {
            layers: compiled(recipe, layers, arguments.without, evaluation=arguments.evaluation)
            for layers in arguments.layers
        }
        totals = {layers: report["kept"] + report["working"] for layers, report in found.items()}
        report = {
            "recipe": recipe.name,
            "machine": str(topology),
            "memory": topology.chip.memory,
            "without": arguments.without,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "jax": version("jax"),
            "compiler": str(compiler.CompilerPackage.of(topology)),
            "by_layers": found,
        }
        if len(totals) > 1:
            report["total"] = extrapolated(totals, DIFFUCODER_7B.num_hidden_layers)
        elif DIFFUCODER_7B.num_hidden_layers in totals:
            report["total"] = totals[DIFFUCODER_7B.num_hidden_layers]
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
