"""`diffucoder grpo`: train on rewards of the model's own completions."""

from dataclasses import asdict
from pathlib import Path

from jax_lm import distributed, terminal
from jax_lm.arguments.training import BUILTIN, Grpo
from jax_lm.commands.trained_model import load_for_training, model_identity
from jax_lm.data.prompts import builtin_prompts, read_prompts
from jax_lm.sandbox.runner import choose_tier
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer

SANDBOXED = {"code", "binary_code", "completed_code"}


def run(arguments: Grpo) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    model_arguments, settings = arguments.model_arguments, arguments.settings
    if SANDBOXED & set(settings.reward_funcs):
        # A host that cannot contain programs is better told before the model has written them.
        choose_tier("auto", allow_unsafe=False)
    if arguments.data == BUILTIN:
        rows = builtin_prompts(arguments.prompts, settings.training.seed)
    else:
        rows = read_prompts(Path(arguments.data))
    distributed.start(**asdict(model_arguments.hosts))
    model, target = load_for_training(model_arguments, settings.training.seed)
    trainer = DiffuGRPOTrainer(
        model,
        target.tokenizer,
        rows,
        settings,
        out=arguments.out,
        trained=target.trained,
        identity=model_identity(model_arguments),
    )
    # The trainer has float32 weights of its own.
    del model
    finished = trainer.train()
    return target.end(finished, trainer.model, arguments.out)
