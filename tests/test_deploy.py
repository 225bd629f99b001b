"""deploy/: the dashboard shows metrics that there are, image and unit start a server with options
that it has, jobs on several hosts start commands that join them.
"""

import json
import os
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
    # a file that is mounted by itself would keep the first keys
    assert not any("subPath" in mount for mount in container["volumeMounts"])
    assert cli.parse(commands()["kubernetes.yaml"][1:]).api_key_file == Path("/run/keys/keys")


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


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.gpu"])
def test_options_after_the_image_do_not_replace_its_keys(file):
    lines = (DEPLOY / file).read_text().splitlines()
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT "))
    _, *words = json.loads(entry.split(maxsplit=1)[1])
    parsed = cli.parse([*words, "--model", "/model"])
    assert (str(parsed.api_key_file), parsed.host) == ("/run/keys", "0.0.0.0")


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


def job(file):
    """The pod of a job on several hosts, and its container."""
    (spec,) = yaml.safe_load((DEPLOY / file).read_text())["spec"]["replicatedJobs"]
    pod = spec["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


SUBMITTED = {
    "slurm.sh": ("srun", {}),
    "tpu_vm.sh": ("gcloud", {"ZONE": "zone"}),
    "train_slurm.sh": ("srun", {"DATA": "/nfs/samples.jsonl", "OUT": "/nfs/run"}),
}
"""What a script submits its command with, and the variables that it asks for."""


def submitted(file, folder):
    """Run a script with a launcher that writes down its arguments; returns the command of ours."""
    launcher, variables = SUBMITTED[file]
    (folder / "bin").mkdir()
    (folder / "bin" / "activate").touch()
    program = folder / "bin" / launcher
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" END >>{folder}/words\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    asked = {"VENV": str(folder)} | variables
    done = subprocess.run(
        ["bash", DEPLOY / file],
        env=environment | asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = [call.splitlines() for call in (folder / "words").read_text().split("\nEND\n")]
    # gcloud gets its command as one word, and srun as several after its own options
    words = [shlex.split(call[-1]) if launcher == "gcloud" else call for call in calls if call]
    return next(
        call[number:]
        for call in words
        for number, word in enumerate(call[:-1])
        if word.endswith("diffucoder") and call[number + 1] in ("generate", "sft")
    )


@pytest.mark.parametrize("file", ["jobset.yaml", "train_jobset.yaml", *SUBMITTED])
def test_jobs_on_several_hosts_start_commands_that_join_them(file, tmp_path, monkeypatch):
    if file in SUBMITTED:
        words = submitted(file, tmp_path)
    else:
        _, container = job(file)
        words = container["command"] + container["args"]
    # recipes are named from the checkout's folder
    monkeypatch.chdir(DEPLOY.parent)
    parsed = cli.parse(words[1:])
    arguments = parsed.model_arguments if words[1] == "sft" else parsed
    assert arguments.hosts.multi_host
    assert words[1] == ("sft" if file.startswith("train") else "generate")
    if file == "train_slurm.sh":
        assert (str(parsed.data), str(parsed.out)) == ("/nfs/samples.jsonl", "/nfs/run")


def test_the_hosts_of_a_training_job_write_one_folder():
    """Its pods mount a bucket, in which data and run lie; a volume of each pod would not do."""
    pod, container = job("train_jobset.yaml")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (shared,) = (volume for volume in pod["volumes"] if "csi" in volume)
    folder = next(path for path, name in mounts.items() if name == shared["name"])
    assert shared["csi"]["driver"] == "gcsfuse.csi.storage.gke.io"
    parsed = cli.parse((container["command"] + container["args"])[1:])
    assert Path(parsed.data).parent == parsed.out.parent == Path(folder)


def test_a_training_job_asks_for_its_folder(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").touch()
    done = subprocess.run(
        ["bash", DEPLOY / "train_slurm.sh"],
        env={"PATH": os.environ["PATH"], "VENV": str(tmp_path), "DATA": "samples.jsonl"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "set OUT to a folder that all nodes see" in done.stderr


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
