"""The notebook: its cells run in order here, without Colab, and a command that fails stops it."""

import json
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "experiment_colab.ipynb"


def cells():
    return [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


def test_what_a_command_prints_is_shown_and_its_status_returned(capsys):
    namespace = {}
    exec(cells()[0].partition("# Where the package")[0], namespace)
    code = "import sys; print('out'); print('err', file=sys.stderr, flush=True); sys.exit(3)"
    assert namespace["run"](sys.executable, "-u", "-c", code) == 3
    assert sorted(capsys.readouterr().out.split()) == ["err", "out"]


def test_nothing_to_install_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="name the REPOSITORY, or upload the wheel"):
        exec(cells()[0], {})


@pytest.mark.parametrize(("status", "stops"), [(0, False), (1, False), (2, True)])
def test_a_run_that_failed_stops_the_notebook(status, stops):
    words = []
    namespace = {
        "MODEL": "m",
        "DTYPE": "int8",
        "run": lambda *given: (words.append(given), status)[1],
    }
    if stops:
        with pytest.raises(AssertionError, match="status 2"):
            exec(cells()[2], namespace)
    else:
        exec(cells()[2], namespace)
    assert words == [
        ("diffucoder", "experiment", "--out", "experiment", "--model", "m", "--dtype", "int8")
    ]


def test_the_installation_shows_its_progress():
    """It takes minutes, and `pip -q` says nothing."""
    assert '"install", *packages' in cells()[0]
    assert '"-q"' not in cells()[0]
