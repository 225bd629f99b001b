"""deploy/: the dashboard shows metrics that there are, image and unit start a server with options
that it has.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from jax_lm.cli import main as cli

DEPLOY = Path(__file__).parent.parent / "deploy"
METRIC = re.compile(r"diffucoder_\w+")


def test_the_dashboard_shows_metrics_that_there_are():
    pytest.importorskip("prometheus_client")
    from jax_lm.serving.metrics import Metrics

    given = set()
    for line in Metrics().page().decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            given |= (
                {f"{name}_{part}" for part in ("bucket", "sum", "count")}
                if kind == "histogram"
                else {name}
            )
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in METRIC.findall(target["expr"])
    }
    assert len(shown) > 10
    assert shown <= given


def commands():
    """What the image and the unit run, without the program."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    parts = {
        line.split()[0]: json.loads(line.split(maxsplit=1)[1])
        for line in lines
        if line[:3] in ("ENT", "CMD")
    }
    unit = (DEPLOY / "diffucoder.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.M)
    assert start
    return {
        "Dockerfile": parts["ENTRYPOINT"] + parts["CMD"],
        "diffucoder.service": shlex.split(start[1]),
    }


@pytest.mark.parametrize("file", ["Dockerfile", "diffucoder.service"])
def test_the_server_is_started_with_options_that_it_has(file):
    program, command, *options = commands()[file]
    assert (program, command) == ("/opt/diffucoder/bin/diffucoder", "serve")
    parsed = cli.parse([command, *options])
    # Both are reached from outside, or may be: with keys.
    assert parsed.api_key_file is not None
    # Who stops them by force waits for longer than they need.
    assert 1 <= parsed.grace < kill_seconds()[file]


def kill_seconds():
    """How long after SIGTERM the process is killed: as the unit says, and docker if nobody says
    anything.
    """
    unit = (DEPLOY / "diffucoder.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert stop
    return {"Dockerfile": 10, "diffucoder.service": int(stop[1])}


def test_systemd_takes_the_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "diffucoder.service"
    text = (DEPLOY / "diffucoder.service").read_text()
    # The program is not installed there.
    unit.write_text(text.replace("/opt/diffucoder/bin/diffucoder", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
