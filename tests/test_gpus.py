"""Cards as XLA's compiler is told of them."""

import re

import pytest

from jax_lm.compilation.gpus import target_config
from jax_lm.planning.roofline import CHIPS

CARDS = [family for family, chip in CHIPS.items() if chip.card]


def test_every_gpu_can_be_compiled_for():
    assert CARDS == ["a100", "h100", "h200", "l4", "rtx4090"]


@pytest.mark.parametrize("family", CARDS)
def test_a_card_in_text(family):
    text = target_config(family)
    # Without a driver, XLA keeps conditions out of CUDA graphs, as it does on no card.
    assert 'driver_version: "' in text
    assert text.count("{") == text.count("}")
    assert f"device_memory_size: {CHIPS[family].memory}\n" in text
    assert f'"{CHIPS[family].names[0]}"' in text
    numbers = {
        name: float(value) for name, value in re.findall(r"(\w+): ([\d.]+)$", text, re.MULTILINE)
    }
    # Units times clock times two operations must be the float32 rate of the data sheet.
    rate = {"a100": 19.5e12, "h100": 67e12, "h200": 67e12, "l4": 30.3e12, "rtx4090": 82.6e12}[
        family
    ]
    assert 2e9 * numbers["core_count"] * numbers["fpus_per_core"] * numbers[
        "clock_rate_ghz"
    ] == pytest.approx(rate, 0.01)
