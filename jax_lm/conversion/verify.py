"""Checks a checkpoint without loading it: configuration, names, shapes, dtypes, sizes, checksums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_lm.checkpoints import checksums, huggingface, loading
from jax_lm.checkpoints.loading import ORBAX_FOLDER, Target
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    found: str
    passed: bool = True


def verify(folder: Path, *, on_progress: Callable[[int, int], None] | None = None) -> Iterator[Check]:
    """Check a folder in the Hugging Face or Orbax layout; ends at the first thing that others depend on.

    Args:
        on_progress: called with bytes hashed so far and bytes in all.
    """
    try:
        config, int8 = DreamForCausalLM.read_config(folder), DreamForCausalLM.is_int8(folder)
        yield Check("config.json", f"{config.model_type}, {config.num_hidden_layers} layers{', int8' if int8 else ''}")
        source = loading.source(folder)
        form = "Orbax" if (folder / ORBAX_FOLDER).is_dir() else "Hugging Face"
        size = sum(tensor.nbytes for tensor in source.stored.values())
        yield Check("layout", f"{form}, {len(source.stored)} tensors, {size / 2**20:,.1f} MiB")
        target = Target(
            shapes=parameter_shapes(config, int8=int8),
            ignored={"lm_head.weight", "lm_head.scale"} if config.tie_word_embeddings else set(),
        )
        huggingface.check_names(folder, source.stored, target.shapes, target.ignored)
        for name, tensor in source.stored.items():
            if name in target.shapes:
                target.request(name, tensor)
        yield Check("names, shapes, dtypes", "as the config asks for")
    except ValueError as error:
        yield Check("checkpoint", str(error), passed=False)
        return
    yield tokenizer(folder, config.mask_token_id, config.vocab_size)
    try:
        results = list(checksums.check(folder, on_progress=on_progress))
    except CheckpointError as error:
        yield Check("checksums", str(error), passed=False)
        return
    wrong = [path.name for path, is_right in results if not is_right]
    if wrong:
        yield Check("checksums", f"{', '.join(wrong)} changed since it was written", passed=False)
    else:
        known = f"{len(results)} files as they were written"
        yield Check("checksums", known if results else f"none known: no {checksums.SUMS}, not from the hub's cache")


def tokenizer(folder: Path, mask_token_id: int | None, vocab_size: int) -> Check:
    """Whether the tokenizer beside the weights belongs to them; none is fine."""
    try:
        found = DiffuCoderTokenizer.from_pretrained(folder)
    except TokenizerError as error:
        return Check("tokenizer", f"none ({error})")
    try:
        found.require_ids(mask_token_id=mask_token_id, vocab_size=vocab_size)
    except ValueError as error:
        return Check("tokenizer", str(error), passed=False)
    return Check("tokenizer", f"{found.vocab_size:,} tokens")
