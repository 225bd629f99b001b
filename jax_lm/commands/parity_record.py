"""`diffucoder parity record`: record the PyTorch reference."""

from jax_lm.arguments.benchmark import ParityRecord


def run(arguments: ParityRecord) -> int:
    try:
        from jax_lm.benchmark import recording
    except ModuleNotFoundError as error:
        raise ValueError(
            f"parity record needs {error.name}, which is not installed: pip install 'jax-diffucoder[parity]'"
        ) from error
    shape = recording.Shape(
        batch=arguments.batch,
        prompt_length=arguments.prompt_length,
        max_new_tokens=arguments.max_new_tokens,
        seed=arguments.seed,
    )
    recording.record(arguments.pytorch_model, arguments.out, shape)
    print(f"recorded {len(recording.CASES)} generations to {arguments.out}")
    return 0
