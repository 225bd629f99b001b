"""deploy/: the dashboard shows metrics that there are, image and unit start a server with options
that it has.
"""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

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

    def image(name):
        lines = (DEPLOY / name).read_text().splitlines()
        parts = {
            line.split()[0]: json.loads(line.split(maxsplit=1)[1])
            for line in lines
            if line[:3] in ("ENT", "CMD")
        }
        return parts["ENTRYPOINT"] + parts["CMD"]

    _, container = kubernetes()
    gpu = image("Dockerfile.gpu")
    unit = (DEPLOY / "diffucoder.service").read_text()
    start = re.search(r"^ExecStart=(.*)$", unit, re.M)
    assert start
    return {
        "Dockerfile": image("Dockerfile"),
        "Dockerfile.gpu": gpu,
        "kubernetes.yaml": gpu + container["args"],
        "diffucoder.service": shlex.split(start[1]),
    }


def kubernetes():
    """The pod of the manifest, and its container."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.gpu"])
def test_an_image_has_every_package(file):
    """Those of the wheel, each copied before it is installed."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(r"^COPY (\w+) \1$", (DEPLOY / file).read_text(), re.M)
    assert copied == packages == ["jax_lm", "untrusted"]


def test_the_manifest_asks_paths_that_there_are():
    pod, container = kubernetes()
    paths = {
        container[f"{probe}Probe"]["httpGet"]["path"]
        for probe in ("startup", "readiness", "liveness")
    }
    assert paths == {"/ready", "/health"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == volumes
    # where the image keeps compilations, and where it reads its keys
    gpu = (DEPLOY / "Dockerfile.gpu").read_text()
    assert "XDG_CACHE_HOME=/var/cache/diffucoder" in gpu
    assert '"--api-key-file", "/run/keys"' in gpu
    assert {"/var/cache/diffucoder", "/run/keys"} < set(mounts)


@pytest.mark.parametrize(
    "file", ["Dockerfile", "Dockerfile.gpu", "diffucoder.service", "kubernetes.yaml"]
)
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
    pod, _ = kubernetes()
    return {
        "Dockerfile": 10,
        "Dockerfile.gpu": 10,
        "diffucoder.service": int(stop[1]),
        "kubernetes.yaml": pod["terminationGracePeriodSeconds"],
    }


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
