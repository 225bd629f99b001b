"""The benchmark of training at the published width, on a narrow model: its runs learn, and agree."""

from dataclasses import replace

import numpy as np
import pytest

from experiments import full_width


@pytest.mark.parametrize("kind", full_width.KINDS)
@pytest.mark.parametrize("weights", full_width.WEIGHTS)
def test_bfloat16_trains_as_float32_does(kind, weights, monkeypatch, tiny_config):
    monkeypatch.setattr(full_width, "DIFFUCODER_7B", replace(tiny_config, vocab_size=1536))
    exact, rounded = (
        full_width.run(kind, weights, 1, dtype, 3, 16) for dtype in ("float32", "bfloat16")
    )
    assert np.isfinite(exact["losses"]).all()
    assert min(exact["norms"]) > 0
    assert exact["losses"] != rounded["losses"]
    assert rounded["losses"] == pytest.approx(exact["losses"], abs=1e-2)
    assert rounded["norms"] == pytest.approx(exact["norms"], rel=0.1)
    assert rounded["peak_bytes"] >= exact["peak_bytes"] > 2**20
