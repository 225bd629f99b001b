"""The plan of a step: what of it counts, compiled or not, and that table and JSON say the same."""

import json
from dataclasses import replace

import pytest

from jax_lm.compilation.compiler import Compiled
from jax_lm.compilation.machine_plan import MachinePlan, compile_step
from jax_lm.config import DIFFUCODER_7B
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import PlannedStep
from jax_lm.planning.roofline import GIB, Topology, gib
from jax_lm.sharding import MeshShape, choose_mesh


def plan(topology, compiled=None):
    shape = Topology.parse(topology)
    return MachinePlan(PlannedStep(DIFFUCODER_7B), shape, compiled)


@pytest.mark.parametrize(("topology", "fits"), [("v5e:1x1", False), ("h200:1", True)])
def test_table_and_record_of_an_estimate_agree(topology, fits):
    found = plan(topology)
    rows, record = dict(found.rows()), json.loads(json.dumps(found.record))
    assert (
        found.total
        == found.estimate.total
        == record["total_bytes"]
        == sum(record["estimated_bytes"].values())
    )
    assert (found.fits, record["fits"], rows["verdict"]) == (
        fits,
        fits,
        "fits" if fits else "does not fit",
    )
    assert rows["in all"].startswith(f"about {gib(found.total)} of ")
    assert rows["basis"] == "arithmetic, an estimate"
    assert bool(record["try"]) is not fits
    assert record["plan"] == {name: rows[name] for name in ("plan", "devices")}
    assert "compiled" not in record


def test_a_plan_of_coupled_grpo_needs_no_rates_of_a_cpu():
    planned = PlannedStep(DIFFUCODER_7B, kind="grpo", on_cpu=True)
    found = MachinePlan(planned, Topology.parse("cpu"))
    assert dict(found.rows())["plan"].startswith("1 x 512 tokens")


def test_what_the_compiler_says_counts():
    large = Compiled(arguments=GIB, working=200 * GIB)
    assert plan("h200:1", Compiled(arguments=GIB, working=GIB)).fits
    assert not plan("h200:1", large).fits
    assert ("working memory", "200.00 GiB") in plan("h200:1", large).memory_rows()
    assert plan("h200:1", large).total == 201 * GIB


def test_the_reference_of_coupled_grpo_counts_as_compiled(tiny_config):
    """A fourth float32 copy of what is trained, which lies on the device during an update."""
    step = PlannedStep(tiny_config, batch=2, canvas=16, new_tokens=8, kind="grpo")
    found = MachinePlan(step, Topology.parse("cpu"))
    compiled = compile_step(found, GenerationOptions())
    # The batch is the rest: tokens, masks, keys and scores.
    assert 0 < compiled.arguments - found.estimate.weights < 2000
    assert replace(found, compiled=compiled).total == compiled.arguments + compiled.working


def test_a_refused_program_does_not_fit():
    found = plan("h200:1", Compiled(refusal="needs 20G of 15G"))
    assert (found.total, found.fits) == (None, False)
    assert found.memory_rows()[-1] == ("in all", "refused by the compiler: needs 20G of 15G")


def test_what_the_compiler_needs_more_counts_against_changes():
    """int8 saves 7 GiB of weights: enough for 150 GiB on an H200, and not for 200."""
    assert any("int8" in change for change in plan("v5e:1x1").changes())
    excess = Compiled(arguments=15 * GIB, working=200 * GIB)
    assert not any("int8" in change for change in plan("h200:1", excess).changes())


def test_a_mesh_takes_all_devices():
    default = PlannedStep(DIFFUCODER_7B).default_mesh
    assert choose_mesh(DIFFUCODER_7B, None, default, 4) == MeshShape(tensor=4)
    assert choose_mesh(DIFFUCODER_7B, "data=2,tensor=2", default, 4) == MeshShape(data=2, tensor=2)
    with pytest.raises(ValueError, match="takes 2 devices, there are 4"):
        choose_mesh(DIFFUCODER_7B, "tensor=2", default, 4)
