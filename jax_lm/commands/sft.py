"""`diffucoder sft`: fine-tune on conversations, or on prompts and responses."""

import json
from dataclasses import asdict

from jax_lm import distributed, terminal
from jax_lm.arguments.training import Sft
from jax_lm.commands.trained_model import identity_of, load
from jax_lm.data.conversations import conversation_rows, read_samples
from jax_lm.training.sft import fine_tune


def run(arguments: Sft) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    model_arguments, settings = arguments.model_arguments, arguments.settings
    distributed.start(**asdict(model_arguments.hosts))
    model, target = load(model_arguments, settings.training.seed)
    samples = read_samples(arguments.data, conversation_rows(target.tokenizer, settings.length))
    finished = fine_tune(
        model,
        samples.rows,
        settings,
        arguments.out,
        pad_id=target.tokenizer.pad_id,
        trained=target.trained,
        identity={"data": samples.digest} | identity_of(model_arguments),
    )
    if distributed.is_first():
        (arguments.out / "refused.json").write_text(json.dumps(samples.refused, indent=1) + "\n", encoding="utf-8")
    if not finished:
        print(f"stopped with a checkpoint; the same command continues the run in {arguments.out}")
        return terminal.TERMINATED
    target.save(model, arguments.out)
    return 0
