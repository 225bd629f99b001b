"""The commands about checkpoints: `diffucoder info`, `convert`, `verify`, `push`."""

import json
from dataclasses import asdict
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.checkpoints import Convert, Info, Push, Verify
from jax_lm.config import DreamConfig
from jax_lm.conversion import push as hub
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import family_facts, verify
from jax_lm.host import terminal
from jax_lm.inference import BUILTIN_MODEL, BUILTIN_NOTICE, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.planning.memory import (
    PRECISIONS,
    Memory,
    PlannedStep,
    estimated_memory,
    parameter_count,
)
from jax_lm.planning.roofline import gib
from jax_lm.sharding import MeshShape
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError

Rows = list[tuple[str, str]]


def run_info(arguments: Info) -> int:
    # configuration and tokenizer only: `info` loads no weights
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL, with_weights=False)
    config = DreamForCausalLM.read_config(folder)
    devices = jax.devices()
    shape = MeshShape.for_generation(config, len(devices))
    if arguments.json:
        print(json.dumps(model_facts(arguments, config, shape), indent=1))
        return 0
    rows = [("model", arguments.model or BUILTIN_NOTICE), ("family", family_facts(config))]
    rows += [
        ("parameters", f"{parameter_count(config):,} in {len(parameter_shapes(config))} tensors")
    ]
    # sizes, with separators of thousands
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        rows.append((name, f"{getattr(config, name):,}"))
    # small numbers and ids
    for name in ("num_key_value_heads", "vocab_size", "max_position_embeddings", "mask_token_id"):
        rows.append((name, f"{getattr(config, name)}"))
    try:
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
        stops = ", ".join(map(str, tokenizer.stop_ids))
        chat = "with" if tokenizer.chat_template else "without"
        rows.append(
            (
                "tokenizer",
                f"{tokenizer.vocab_size:,} tokens, stop ids {stops}, {chat} chat template",
            )
        )
    except TokenizerError as error:
        rows.append(("tokenizer", f"none ({error})"))
    rows.append(("devices", f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"))
    rows.append(("mesh", f"{shape}" + (" (overridden by --mesh)" if shape.size > 1 else "")))
    # CPUs do not report their memory
    for device in devices:
        if statistics := device.memory_stats():
            used, limit = statistics["bytes_in_use"], statistics.get("bytes_limit")
            rows.append(
                (
                    f"memory of {device}",
                    f"{gib(used)} in use{f', {gib(limit - used)} free' if limit else ''}",
                )
            )
    print_rows([*rows, *precision_rows(arguments, config, shape)])
    return 0


def precision_rows(arguments: Info, config: DreamConfig, shape: MeshShape) -> Rows:
    """List the expected memory of each precision."""
    rows, default = [], fitting_dtype(parameter_count(config))
    for dtype, memory in expected_memory(arguments, config, shape).items():
        sizes = f"{arguments.batch_size} x {arguments.max_length} tokens{', per device' if shape.size > 1 else ''}"
        note = "  (default here)" if dtype == default else ""
        rows.append(
            (
                f"memory, {dtype}",
                f"{gib(memory.weights)} weights + about {gib(memory.working)} for {sizes}{note}",
            )
        )
    return rows


def expected_memory(arguments: Info, config: DreamConfig, shape: MeshShape) -> dict[str, Memory]:
    """Estimate the memory per device of each precision."""
    length = arguments.max_length
    # only the canvas counts: its part that is new does not change the estimate
    steps = {
        dtype: PlannedStep(
            precision=dtype, batch=arguments.batch_size, canvas=length, new_tokens=length
        )
        for dtype in PRECISIONS
    }
    return {dtype: estimated_memory(config, planned, shape) for dtype, planned in steps.items()}


def model_facts(arguments: Info, config: DreamConfig, shape: MeshShape) -> dict[str, Any]:
    """Return the JSON object of `info --json`; memory is in bytes per device."""
    device, count = jax.devices()[0], parameter_count(config)
    return {
        "model": arguments.model or "builtin",
        "parameters": count,
        "config": asdict(config),
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": len(jax.devices()),
        },
        "mesh": str(shape),
        "dtype": fitting_dtype(count),
        "memory": {
            name: asdict(each) for name, each in expected_memory(arguments, config, shape).items()
        },
    }


def print_rows(rows: Rows) -> None:
    """Print names and values in two columns."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


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
    print(
        f"wrote {done.tensors} tensors, {done.nbytes / 2**20:,.1f} MiB, to {arguments.destination} ({done.format}); "
        "read back: names, shapes, dtypes, checksums and logits are equal"
    )
    return 0


def run_verify(arguments: Verify) -> int:
    with terminal.progress("verifying") as report:
        checks = list(verify(huggingface.resolve(arguments.path), on_progress=report))
    if arguments.json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
        return 0 if all(check.passed for check in checks) else 1
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
