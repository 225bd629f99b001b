"""`diffucoder adapt`: make an autoregressive model, or one from nothing, a masked-diffusion model."""

import dataclasses

from flax import nnx

from jax_lm import terminal
from jax_lm.arguments.training import Adapt
from jax_lm.checkpoints import huggingface
from jax_lm.commands.trained_model import TrainedModel, parse_mesh, write_refused
from jax_lm.data.conversations import read_samples, text_rows
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.sft import adapt


def run(arguments: Adapt) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    folder = huggingface.resolve(arguments.model, with_weights=not arguments.from_scratch)
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder, adds_mask=True)
    config = DreamForCausalLM.read_config(folder)
    tokenizer.require_ids(mask_token_id=tokenizer.mask_id, vocab_size=config.vocab_size)
    ids = {"mask_token_id": tokenizer.mask_id, "pad_token_id": tokenizer.pad_id}
    config = dataclasses.replace(config, model_type="Dream", **ids)
    samples = read_samples(arguments.data, text_rows(tokenizer, arguments.settings.max_length))
    mesh = parse_mesh(arguments.mesh)
    if arguments.from_scratch:
        model = DreamForCausalLM(config, rngs=nnx.Rngs(arguments.settings.training.seed))
        model = model.on_mesh(mesh) if mesh else model
    else:
        model = DreamForCausalLM.from_pretrained(folder, mesh=mesh)
        model.config = config
    target = TrainedModel(tokenizer, model.dtype)
    finished = adapt(
        model,
        samples.rows,
        arguments.settings,
        arguments.out,
        pad_id=tokenizer.pad_id,
        identity={"data": samples.digest, "from_scratch": arguments.from_scratch},
    )
    write_refused(samples, arguments.out)
    return target.end(finished, model, arguments.out)
