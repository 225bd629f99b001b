"""A backend's process answers, or says in one line why not."""

from pathlib import Path

import numpy as np
import pytest
from cases.reference import GOLDEN

from jax_lm.benchmark.settings import Cell
from jax_lm.benchmark.worker import COMPARED_SHAPE, WorkerRequest, run_worker


def test_a_process_measures():
    asked = Cell(batch=2, prompt_tokens=8, new_tokens=8)
    request = WorkerRequest(
        backend="jax",
        folder=GOLDEN / "checkpoint",
        dtype="float32",
        cells=(asked,),
        repeats=1,
        compares=True,
    )
    result, outputs = run_worker(request, limit=200.0)
    [cell] = result["cells"]
    assert (cell["batch"], cell["prompt_tokens"], cell["new_tokens"]) == (2, 8, 8)
    assert cell["tokens_per_second"] == pytest.approx(16 / cell["seconds"])
    assert cell["first_seconds"] > cell["seconds"] > 0
    assert cell["forward_seconds"] > 0
    assert result["peak_bytes"] >= result["load_bytes"] > 0
    assert np.asarray(result["greedy"]).shape == (2, 32)
    assert outputs["logits"].shape[:2] == COMPARED_SHAPE


def test_a_process_that_fails_says_why():
    request = WorkerRequest(backend="jax", folder=Path("/nowhere"), dtype="float32")
    with pytest.raises(ValueError, match=r"the jax backend ended: .*nowhere"):
        run_worker(request)
    with pytest.raises(ValueError, match=r"the jax backend took more than 0\.01 s"):
        run_worker(request, limit=0.01)
