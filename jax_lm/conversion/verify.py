"""Checks of a checkpoint that is not loaded: configuration, tensors, tokenizer and checksums."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_lm.checkpoints import checksums
from jax_lm.checkpoints.loading import Progress, check_tensors, open_checkpoint
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.config import DreamConfig
from jax_lm.models.dream import DreamForCausalLM, load_spec
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.tokenizer.files import TOKENIZER_FILES


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        found: what was found there.
        passed: whether it is right.
    """

    name: str
    found: str
    passed: bool = True


def verify(folder: Path, *, on_progress: Progress | None = None) -> Iterator[Check]:
    """Check a folder in the Hugging Face or Orbax layout.

    Yields one result per check. Stops after a failed check that later checks depend on.

    Args:
        folder: folder of the checkpoint.
        on_progress: called with the bytes read so far and the total number of bytes.
    """
    # Configuration and headers, without which the other checks make no sense.
    try:
        config = DreamForCausalLM.read_config(folder)
        int8 = DreamForCausalLM.is_int8(folder)
        yield Check(
            "config.json",
            f"{config.model_type}, {config.num_hidden_layers} layers{', int8' if int8 else ''}",
        )
        yield Check("family", family_facts(config))
        source = open_checkpoint(folder, config.architecture.tensors)
        form = {"huggingface": "Hugging Face", "orbax": "Orbax", "gguf": "GGUF"}[source.format]
        size = sum(tensor.nbytes for tensor in source.stored.values())
        yield Check("layout", f"{form}, {len(source.stored)} tensors, {size / 2**20:,.1f} MiB")
        spec = load_spec(config, int8)
        spec.requests(source)
        yield Check("names, shapes, dtypes", "as the config asks for")
        # Reads every tensor once, some at a time.
        for _ in check_tensors(source, spec):
            pass
        yield Check("values", "finite" + (", embeddings tied" if spec.tied else ""))
    except ValueError as error:
        yield Check("checkpoint", str(error), passed=False)
        return
    yield tokenizer_check(folder, config)
    # Checksums, which take as long as reading all files.
    try:
        results = list(checksums.check_sums(folder, on_progress=on_progress))
    except CheckpointError as error:
        yield Check("checksums", str(error), passed=False)
        return
    # One result for all files, as there may be hundreds of shards.
    wrong = [path.name for path, is_right in results if not is_right]
    summary = f"{len(results)} files as they were written"
    if wrong:
        summary = f"{', '.join(wrong)} changed since it was written"
    elif not results:
        summary = f"none known: no {checksums.SUMS}, not from the hub's cache"
    yield Check("checksums", summary, passed=not wrong)


def family_facts(config: DreamConfig) -> str:
    """Describe the family of a model: what its logits and its attention are."""
    family = config.family
    rows = "shifted by one" if family.shifts else "not shifted"
    blocks = f" of {config.block_size}" if config.block_size else ""
    mask = "no mask token" if config.mask_token_id is None else f"mask id {config.mask_token_id}"
    limit = "" if family.is_diffusion else "; can be decoded left to right; adapt it for any order"
    return f"{family.name}: {mask}, logits {rows}, attention {family.attention}{blocks}{limit}"


def tokenizer_check(folder: Path, config: DreamConfig) -> Check:
    """Check that the tokenizer can be read and belongs to the model; having none is fine."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return Check("tokenizer", "none")
    try:
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
        if config.mask_token_id is None and tokenizer.special.mask is None:
            tokenizer.require_vocabulary(config.vocab_size)
        else:
            tokenizer.require_ids(config)
        # A template can only be checked by rendering a conversation.
        if tokenizer.chat_template is not None:
            tokenizer.apply_chat_template([{"role": "user", "content": "Reverse a list."}])
    except ValueError as error:
        return Check("tokenizer", str(error), passed=False)
    return Check("tokenizer", f"{tokenizer.vocab_size:,} tokens")
