"""`diffucoder parity record`: record the PyTorch reference."""

from jax_lm.arguments.benchmark import ParityRecord


def run(arguments: ParityRecord) -> int:
    try:
        from jax_lm.benchmark import recording
    except ModuleNotFoundError as error:
        raise ValueError(
            f"parity record needs {error.name}, which is not installed: pip install 'jax-diffucoder[parity]'"
        ) from error
    recording.record_reference(arguments.pytorch_model, arguments.out, arguments.shape)
    print(f"recorded {len(recording.CASES)} generations to {arguments.out}")
    return 0
