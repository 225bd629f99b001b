"""`diffucoder info`: what a checkpoint is, and what it takes to run it."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Info:
    """Show configuration, parameter count, tokenizer, devices and expected memory of a model.

    A folder with only a config.json is enough.

    Examples:
        diffucoder info
        diffucoder info --model apple/DiffuCoder-7B-Instruct --canvas 512

    Attributes:
        model: folder or hub id; the built-in model if not given.
        batch: rows that are decoded together, for the memory estimate.
        canvas: tokens of a row, prompt and answer, for the memory estimate.
    """

    model: str | None = None
    batch: int = 1
    canvas: int = 512

    def run(self) -> int:
        import jax

        from jax_lm.checkpoints import huggingface
        from jax_lm.inference import BUILTIN_MODEL, BUILTIN_NOTICE, fitting_dtype
        from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
        from jax_lm.planning import PRECISIONS, Job, estimated_memory, parameter_count
        from jax_lm.sharding import MeshShape
        from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError

        folder = huggingface.resolve(self.model or BUILTIN_MODEL, with_weights=False)
        config = DreamForCausalLM.read_config(folder)
        count = parameter_count(config)
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_row("model", str(self.model) if self.model else BUILTIN_NOTICE)
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
                free = f", {(limit - used) / 2**30:.2f} GiB free" if limit else ""
                table.add_row(f"memory of {device}", f"{used / 2**30:.2f} GiB in use{free}")
        for dtype in PRECISIONS:
            job = Job(precision=dtype, batch=self.batch, canvas=self.canvas, new_tokens=self.canvas)
            memory = estimated_memory(config, job, shape)
            note = "  (default here)" if dtype == fitting_dtype(count) else ""
            table.add_row(
                f"memory, {dtype}",
                f"{memory.weights / 2**30:.2f} GiB weights + about {memory.working / 2**30:.2f} GiB for "
                f"{self.batch} x {self.canvas} tokens{', per device' if shape.size > 1 else ''}{note}",
            )
        Console(highlight=False).print(table)
        return 0
