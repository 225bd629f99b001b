"""`diffucoder sft`: fine-tune on conversations, or on prompts and responses."""

from dataclasses import asdict

from jax_lm import distributed, terminal
from jax_lm.arguments.training import Sft
from jax_lm.commands.trained_model import load_for_training, model_identity, write_refused
from jax_lm.data.conversations import conversation_rows, read_samples
from jax_lm.training.sft import fine_tune


def run(arguments: Sft) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    model_arguments, settings = arguments.model_arguments, arguments.settings
    distributed.start(**asdict(model_arguments.hosts))
    model, target = load_for_training(model_arguments, settings.training.seed)
    samples = read_samples(arguments.data, conversation_rows(target.tokenizer, settings.max_length))
    finished = fine_tune(
        model,
        samples.rows,
        settings,
        arguments.out,
        pad_id=target.tokenizer.pad_id,
        trained=target.trained,
        identity={"data": samples.digest} | model_identity(model_arguments),
    )
    write_refused(samples, arguments.out)
    return target.end(finished, model, arguments.out)
