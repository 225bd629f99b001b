"""The commands about checkpoints: `diffucoder info`, `plan`, `convert`, `verify`, `push`."""

import importlib.util
import sys

import jax
from rich.console import Console
from rich.table import Table

from jax_lm import compilation, planning, terminal
from jax_lm.arguments.checkpoints import Convert, Info, Plan, Push, Verify
from jax_lm.checkpoints import huggingface
from jax_lm.compilation import Compiled
from jax_lm.config import SHAPES, DreamConfig
from jax_lm.conversion import push as hub
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import verify
from jax_lm.inference import BUILTIN_MODEL, BUILTIN_NOTICE, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.options import require_one_of
from jax_lm.planning import PRECISIONS, Bound, Memory, PlannedStep, estimated_memory, parameter_count
from jax_lm.roofline import Topology, gib
from jax_lm.sharding import MeshShape
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError

Rows = list[tuple[str, str]]


def run_info(arguments: Info) -> int:
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL, with_weights=False)
    config = DreamForCausalLM.read_config(folder)
    count, canvas = parameter_count(config), arguments.canvas
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("model", str(arguments.model) if arguments.model else BUILTIN_NOTICE)
    table.add_row("parameters", f"{count:,} in {len(parameter_shapes(config))} tensors")
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        table.add_row(name, f"{getattr(config, name):,}")
    for name in ("num_key_value_heads", "vocab_size", "max_position_embeddings", "mask_token_id"):
        table.add_row(name, f"{getattr(config, name)}")
    try:
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
        stops = ", ".join(map(str, tokenizer.stop_ids))
        chat = "with" if tokenizer.chat_template else "without"
        table.add_row("tokenizer", f"{tokenizer.vocab_size:,} tokens, stop ids {stops}, {chat} chat template")
    except TokenizerError as error:
        table.add_row("tokenizer", f"none ({error})")
    devices = jax.devices()
    table.add_row("devices", f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})")
    shape = MeshShape.for_generation(config, len(devices))
    table.add_row("mesh", f"{shape}" + (" (overridden by --mesh)" if shape.size > 1 else ""))
    for device in devices:
        if statistics := device.memory_stats():
            used, limit = statistics["bytes_in_use"], statistics.get("bytes_limit")
            free = f", {gib(limit - used)} free" if limit else ""
            table.add_row(f"memory of {device}", f"{gib(used)} in use{free}")
    for dtype in PRECISIONS:
        planned = PlannedStep(precision=dtype, batch=arguments.batch, canvas=canvas, new_tokens=canvas)
        memory = estimated_memory(config, planned, shape)
        note = "  (default here)" if dtype == fitting_dtype(count) else ""
        table.add_row(
            f"memory, {dtype}",
            f"{gib(memory.weights)} weights + about {gib(memory.working)} for "
            f"{arguments.batch} x {canvas} tokens{', per device' if shape.size > 1 else ''}{note}",
        )
    Console(highlight=False).print(table)
    return 0


def run_convert(arguments: Convert) -> int:
    conversion = Conversion(
        format=arguments.format,
        dtype=arguments.dtype,
        int8=arguments.quantize == "int8",
        allow_missing_bias=arguments.allow_missing_bias,
    )
    source = huggingface.resolve(arguments.source)
    with terminal.progress("converting") as report:
        done = convert(source, arguments.destination, conversion, on_progress=report)
    print(
        f"wrote {done.tensors} tensors, {done.nbytes / 2**20:,.1f} MiB, to {arguments.destination} ({done.format}); "
        "read back: names, shapes, dtypes, checksums and logits are equal"
    )
    return 0


def run_verify(arguments: Verify) -> int:
    with terminal.progress("verifying") as report:
        checks = list(verify(huggingface.resolve(arguments.path), on_progress=report))
    for check in checks:
        print(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.found}")
    return 0 if all(check.passed for check in checks) else 1


def run_push(arguments: Push) -> int:
    upload = hub.prepare_upload(arguments.folder, arguments.repo, arguments.license)
    sizes = {path: path.stat().st_size for path in upload.files}
    for path, size in sizes.items():
        print(f"{size:15,}  {path.name}")
    if upload.card is not None:
        print(f"{len(upload.card.encode()):15,}  {hub.CARD}, made for it:\n\n{upload.card}")
    if upload.left_out:
        print(f"left out: {', '.join(path.name for path in upload.left_out)}")
    if not arguments.confirm:
        print(f"nothing was sent to {arguments.repo}: --confirm does it")
        return 0
    address = hub.push(
        upload, arguments.repo, message=arguments.message, is_public=arguments.public, revision=arguments.revision
    )
    print(f"sent {sum(sizes.values()) / 2**20:,.1f} MiB: {address}")
    return 0


def run_plan(arguments: Plan) -> int:
    topology = Topology.parse(arguments.topology)
    if topology.is_tpu:
        compilation.prepare_compiler()
    config = config_of(arguments)
    planned = PlannedStep(
        precision=arguments.dtype,
        batch=arguments.batch,
        canvas=arguments.canvas,
        new_tokens=arguments.generation.max_new_tokens,
        preset=arguments.generation.decoding.preset,
        kind=arguments.step,
    )
    mesh = MeshShape.parse(arguments.mesh) if arguments.mesh else planned.default_mesh(config, topology.devices)
    mesh.require(config)
    if mesh.size != topology.devices:
        raise ValueError(f"mesh={arguments.mesh!r}: takes {mesh.size} devices, {topology} has {topology.devices}")
    compiled = None
    if topology.is_tpu and not arguments.estimate:
        if importlib.util.find_spec("libtpu"):
            target = compilation.topology_mesh(topology, mesh)
            compiled = compilation.compile_step(config, planned, target, arguments.generation)
        else:
            missing = "libtpu is not installed, so nothing is compiled: pip install 'jax-diffucoder[plan]'"
            print(missing, file=sys.stderr)
    if arguments.generation.draft and compiled is None:
        raise ValueError(f"draft={arguments.generation.draft}: arithmetic knows no guesses; compile for a TPU, or 0")
    memory = planning.estimated_memory(config, planned, mesh)
    total = memory.total if compiled is None else compiled.total
    is_enough = total is not None and planning.fits(total, topology)
    smallest = planning.smallest_topology(config, planned, topology)
    new = f", {planned.new_tokens} of them new" if planned.kind != "sft" else ""
    how = f"one {planned.kind} update of all weights" if planned.is_training else f"preset {planned.preset}"
    rows = [
        ("plan", f"{planned.batch} x {planned.canvas} tokens{new}, {how}, {planned.precision}"),
        ("devices", f"{topology}: {topology.devices}, mesh {mesh}"),
        ("basis", "arithmetic, an estimate" if compiled is None else "compiled for it by libtpu"),
        *memory_rows(planned, memory, compiled, topology),
        *speed_rows(planned, planning.bound(config, planned, mesh, topology), compiled),
        ("verdict", "[green]fits[/green]" if is_enough else "[red]does not fit[/red]"),
        ("smallest that fits", f"{smallest[0]}, mesh {smallest[1]} (estimate)" if smallest else "none known"),
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    if is_enough:
        return 0
    for change in planning.cheapest_changes(config, planned, mesh, topology):
        console.print(f"try {change}")
    return 1


def config_of(arguments: Plan) -> DreamConfig:
    """Read the shape to plan for."""
    if (arguments.model is None) == (arguments.model_config is None):
        raise ValueError("model, model_config: give one of them")
    if arguments.model is not None:
        return DreamForCausalLM.read_config(huggingface.resolve(arguments.model, with_weights=False))
    assert arguments.model_config is not None
    require_one_of("model_config", arguments.model_config, tuple(SHAPES))
    return SHAPES[arguments.model_config]


def memory_rows(planned: PlannedStep, memory: Memory, compiled: Compiled | None, topology: Topology) -> Rows:
    """List what a step needs, and all of it against what there is."""
    rows = [("masters and moments" if planned.is_training else "weights per device", gib(memory.weights))]
    rows += [("keys and values", gib(memory.cache))] if memory.cache else []
    limit = f"{gib(topology.chip.memory)}, of which {planning.RESERVED:.0%} must stay free"
    if compiled is None:
        about = ("working memory", f"about {gib(memory.working)}")
        return [*rows, about, ("in all", f"about {gib(memory.total)} of {limit}")]
    if compiled.total is None:
        return [*rows, ("in all", f"refused by the compiler: {compiled.refusal}")]
    return [*rows, ("working memory", gib(compiled.working)), ("in all", f"{gib(compiled.total)} of {limit}")]


def speed_rows(planned: PlannedStep, least: Bound, compiled: Compiled | None) -> Rows:
    """List the cost of a step and what follows from it."""
    rows = [("step at least", f"{least.step.flops / 1e12:.3f} TFLOP and {gib(least.step.bytes)} per device")]
    if compiled is not None and compiled.flops and compiled.bytes is not None:
        counted = f"{compiled.flops / 1e12:.3f} TFLOP and {gib(compiled.bytes)}"
        rows.append(("step as compiled", f"{counted} per device, one loop body"))
    rate = "depends on how many a step commits"
    if least.tokens_per_second is not None:
        unit = " learnt from" if planned.is_training else ", at one token per row and step"
        rate = f"at most {least.tokens_per_second:,.0f}{unit}"
    roofline = f"{least.seconds * 1e3:.2f} ms per step, bound by {least.limit}"
    return [*rows, ("roofline", roofline), ("tokens/s", rate)]
