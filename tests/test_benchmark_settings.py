"""What may be asked of a benchmark, and what is refused."""

import pytest

from jax_lm.benchmark.settings import Cell, Workload


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_sizes", (1, 0)),
        ("new_tokens", (-4,)),
        ("prompt_tokens", (0,)),
        ("repeats", 0),
        ("batch_sizes", ()),
    ],
)
def test_refused_workloads_name_the_argument(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        Workload(**{name: value})


def sizes(cells):
    return [(cell.batch, cell.prompt_tokens, cell.new_tokens) for cell in cells]


def test_edges_are_lengths_and_batches():
    workload = Workload(prompt_tokens=(16, 64), batch_sizes=(1, 4), new_tokens=(8,))
    assert sizes(workload.edges) == [(1, 16, 8), (1, 64, 8), (4, 16, 8)]


def test_cells_are_every_combination():
    workload = Workload(prompt_tokens=(16,), batch_sizes=(1, 4), new_tokens=(8, 9))
    cells = workload.cells(("exact", "fast"))
    assert sizes(cells[::2]) == [(1, 16, 8), (4, 16, 8), (1, 16, 9), (4, 16, 9)]
    assert [cell.preset for cell in cells[:2]] == ["exact", "fast"]


def test_a_cell_must_fit_the_context():
    cell = Cell(batch=1, prompt_tokens=5, new_tokens=4)
    cell.require_room(9)
    with pytest.raises(
        ValueError, match="prompt_tokens=5 with new_tokens=4: the context holds 8 tokens"
    ):
        cell.require_room(8)
