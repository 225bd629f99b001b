"""Chooses which texts are decoded together."""

from collections.abc import Sequence
from itertools import groupby

from jax_lm.config import DreamConfig


def share_batches(widths: Sequence[int], size: int, config: DreamConfig) -> list[list[int]]:
    """Put texts of similar width into batches, to reduce padding.

    A model whose blocks are counted from the start of a text is decoded as it was trained, and with
    its cache, if all prompts of a batch end at the same place in a block.

    Args:
        widths: tokens of each text, prompt and answer together; all answers have the same length.
        size: largest number of texts in a batch.
        config: configuration of the model.

    Returns:
        The numbers of the texts of each batch.
    """
    block = (config.family.prompt == "start" and config.block_size) or 1

    def place(number: int) -> int:
        return widths[number] % block

    # widths 9 4 7 5 and size 2 -> [1, 3], [2, 0]; in blocks of 4, places 1 0 3 1 -> [1], [3, 0], [2]
    order = sorted(range(len(widths)), key=lambda number: (place(number), widths[number]))
    batches = []
    for _, group in groupby(order, key=place):
        numbers = [*group]
        batches += [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return batches
