"""Which run may continue a run folder: settings compared under one vocabulary, also those that version 0.1 wrote.

Knows names and values, no trainer.
"""

from collections.abc import Iterator, Mapping
from typing import Any

FORMER_NAMES = {
    "steps": "max_steps",
    "accumulation": "gradient_accumulation_steps",
    "length": "max_length",
    "rows": "batch_size",
    "epochs": "num_train_epochs",
    "optimizer.warmup_share": "optimizer.warmup_ratio",
    "optimizer.final_share": "optimizer.min_lr_ratio",
    "optimizer.clip_norm": "optimizer.max_grad_norm",
    "optimizer.epsilon": "optimizer.adam_epsilon",
    "grpo.max_completion_length": "grpo.generation.max_new_tokens",
    "grpo.diffusion_steps": "grpo.generation.num_steps",
    "grpo.decoding": "grpo.generation.decoding.preset",
}
"""Settings of version 0.1, and what they are called now."""

FORMER_PLACES = {
    "grpo.generation": ("temperature", "top_p", "top_k", "alg"),
    "grpo.masks": ("estimator", "num_mask_pairs", "min_mask_ratio", "max_mask_ratio"),
    "grpo.loss": ("loss_type", "epsilon", "epsilon_high", "beta", "kl_clamp"),
    "optimizer": (
        "learning_rate", "warmup_ratio", "min_lr_ratio", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm",
    ),
    "": ("gradient_accumulation_steps", "compute_dtype", "seed"),
}  # fmt: skip
"""Settings that version 0.1 had in `grpo` itself, by where they are now; those of the trainer it had there as well."""

FORMER_CONSTANTS = {"tokens_per_step": 1, "alg_temp": 0.0, "early_stop": True}
"""Settings of sampling that version 0.1 did not offer, with the values that it used."""


def differing_setting(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Name the first setting in which two runs differ, with both values; None if they agree.

    A setting that one of them lacks counts as None.
    """
    ours, theirs = (present_names(dict(named_settings(identity))) for identity in (wanted, held))
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"{name}={theirs.get(name)!r}, not {ours.get(name)!r}"
    return None


def named_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of a nested mapping, by dotted name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from named_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under today's names; those of a present run as they are."""
    if "steps" not in settings:
        return dict(settings)
    names = FORMER_NAMES | {
        f"grpo.{name}": f"{place}.{name}".removeprefix(".") for place, inner in FORMER_PLACES.items() for name in inner
    }
    present = {names.get(name, name): value for name, value in settings.items() if name != "optimizer.betas"}
    present |= dict(zip(("optimizer.adam_beta1", "optimizer.adam_beta2"), settings["optimizer.betas"], strict=True))
    if "grpo.num_generations" in settings:
        present |= {f"grpo.generation.{name}": value for name, value in FORMER_CONSTANTS.items()}
    return present
