"""The recorded reference: PyTorch's tensors and the checkpoint that they came from."""

from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"
