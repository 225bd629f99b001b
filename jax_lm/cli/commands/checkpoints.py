"""The commands about checkpoints: `diffucoder info`, `convert`, `verify`, `push`."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import jax
from rich.console import Console

from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.checkpoints import Convert, Info, Push, Verify
from jax_lm.config import SIZES, DreamConfig, Fields
from jax_lm.conversion import push as hub
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import family_facts, verify
from jax_lm.host import terminal
from jax_lm.inference import BUILTIN_NOTICE, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.planning.memory import PlannedStep, estimate_memory, offered_precisions, parameter_count
from jax_lm.planning.roofline import gib
from jax_lm.reports.document import facts_table
from jax_lm.sharding import MeshShape
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError


def run_info(arguments: Info) -> int:
    # configuration and tokenizer only: `info` loads no weights
    folder = huggingface.resolve(arguments.model, with_weights=False)
    config = DreamForCausalLM.read_config(folder)
    length = arguments.max_length or min(512, config.max_position_embeddings)
    config.require_context("max_length", length)
    facts = model_facts(arguments, folder, config, length)
    if arguments.json:
        print(json.dumps(facts, indent=1))
        return 0
    device = facts["device"]
    is_mesh = device["count"] > 1
    settings = [f"{name}={value}" for name, value in config.family.settings.items()]
    rows = [
        ("model", arguments.model or BUILTIN_NOTICE),
        ("family", family_facts(config)),
        ("authors decode with", ", ".join(settings)),
        ("parameters", f"{facts['parameters']:,} in {len(parameter_shapes(config))} tensors"),
        *((name, f"{getattr(config, name):,}") for name in SIZES),
        ("mask_token_id", str(config.mask_token_id)),
        ("tokenizer", describe_tokenizer(folder)),
        ("devices", "{count} x {kind} ({platform})".format_map(device)),
        ("mesh", facts["mesh"] + (" (overridden by --mesh)" if is_mesh else "")),
    ]
    # CPUs do not report their memory
    for each in jax.devices():
        if statistics := each.memory_stats():
            used = statistics["bytes_in_use"]
            limit = statistics.get("bytes_limit")
            free = f", {gib(limit - used)} free" if limit else ""
            rows.append((f"memory of {each}", f"{gib(used)} in use{free}"))
    sizes = f"{arguments.batch_size} x {length} tokens"
    if is_mesh:
        sizes += ", per device"
    for dtype, memory in facts["memory"].items():
        need = f"{gib(memory['weights'])} weights + about {gib(memory['working'])} for {sizes}"
        if dtype == facts["dtype"]:
            need += "  (default here)"
        rows.append((f"memory, {dtype}", need))
    Console(highlight=False).print(facts_table(rows))
    return 0


def describe_tokenizer(folder: Path) -> str:
    """Return a summary of a model's tokenizer, which may be missing."""
    try:
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    except TokenizerError as error:
        return f"none ({error})"
    stops = ", ".join(map(str, tokenizer.stop_ids))
    chat = "with" if tokenizer.chat_template else "without"
    return f"{tokenizer.vocab_size:,} tokens, stop ids {stops}, {chat} chat template"


def model_facts(arguments: Info, folder: Path, config: DreamConfig, length: int) -> Fields:
    """Return the JSON object of `info --json`; memory is in bytes per device."""
    devices = jax.devices()
    count = parameter_count(config)
    mesh = MeshShape.for_generation(config, len(devices))
    # only the canvas counts: its part that is new does not change the estimate
    step = PlannedStep(
        config, batch=arguments.batch_size, canvas=length, new_tokens=length, mesh=mesh
    )
    memory = {
        dtype: asdict(estimate_memory(replace(step, precision=dtype)))
        for dtype in offered_precisions(config)
    }
    device = devices[0]
    return {
        "model": arguments.model or "builtin",
        "parameters": count,
        "config": asdict(config),
        "device": {"platform": device.platform, "kind": device.device_kind, "count": len(devices)},
        "mesh": str(mesh),
        "dtype": "int8" if DreamForCausalLM.is_int8(folder) else fitting_dtype(count),
        "memory": memory,
    }


def run_convert(arguments: Convert) -> int:
    conversion = Conversion(
        format=arguments.format,
        dtype=arguments.dtype,
        int8=arguments.quantize == "int8",
        allow_missing_bias=arguments.allow_missing_bias,
        allow_nonfinite=arguments.allow_nonfinite,
    )
    # downloads if it is a hub id
    source = huggingface.resolve(arguments.source)
    with terminal.progress("converting") as report:
        done = convert(source, arguments.destination, conversion, on_progress=report)
    # A GGUF file may hold less than the source, so its values are compared, but not logits.
    compared = "dtypes, checksums and logits" if done.format != "gguf" else "and values as stored"
    print(
        f"wrote {done.tensors} tensors, {done.nbytes / 2**20:,.1f} MiB, to {arguments.destination} ({done.format}); "
        f"read back: names, shapes, {compared} are equal"
    )
    return 0


def run_verify(arguments: Verify) -> int:
    with terminal.progress("verifying") as report:
        checks = list(verify(huggingface.resolve(arguments.path), on_progress=report))
    if arguments.json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        for check in checks:
            print(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.found}")
    return 0 if all(check.passed for check in checks) else 1


def run_push(arguments: Push) -> int:
    upload = hub.prepare_upload(arguments.folder, arguments.repo, arguments.license)
    # show everything that would be sent
    sizes = {path: path.stat().st_size for path in upload.files}
    for path, size in sizes.items():
        print(f"{size:15,}  {path.name}")
    if upload.card is not None:
        print(f"{len(upload.card.encode()):15,}  {hub.CARD}, generated:\n\n{upload.card}")
    if upload.left_out:
        print(f"left out: {', '.join(path.name for path in upload.left_out)}")
    # without confirmation, nothing is sent
    if not arguments.yes:
        print(f"dry run, nothing was sent to {arguments.repo}: --yes uploads")
        return 0
    address = hub.push(
        upload,
        arguments.repo,
        message=arguments.message,
        is_public=arguments.public,
        revision=arguments.revision,
    )
    print(f"sent {sum(sizes.values()) / 2**20:,.1f} MiB: {address}")
    return 0
