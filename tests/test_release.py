"""What is published: one version, a source archive from which the wheel can be built, a wheel that
runs by itself.

`pytest --release tests/test_release.py` builds both, and installs the wheel into a new environment
of each Python from 3.11 to 3.13 that is found here.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")


def run(*words, folder, **variables):
    """Standard output of a command that must succeed, without this checkout on its path."""
    kept = {
        name: value
        for name, value in os.environ.items()
        # a newer jax ends at flags that it does not know
        if name not in ("PYTHONPATH", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")
    } | variables
    result = subprocess.run(
        [str(word) for word in words], cwd=folder, env=kept, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{words}: {result.stdout}\n{result.stderr}"
    return result.stdout


def interpreter(version):
    """A Python of this version, on the path or beside the one that runs this test (pyenv, uv); else
    None.
    """
    beside = Path(sys.base_prefix).parent.glob(f"*{version}*/bin/python{version}")
    for path in (shutil.which(f"python{version}"), *beside):
        probe = [path, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        if path and subprocess.run(probe, capture_output=True, text=True).stdout.strip() == version:
            return path
    return None


@pytest.fixture(scope="session")
def workflow():
    """Commands of each job that a tag starts."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    release = yaml.safe_load(text)
    # YAML 1.1 reads the word on as true.
    assert release[True] == {"push": {"tags": ["v*"]}}
    jobs = release["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None,
        "run": "build",
        "guides": "build",
        "tests": None,
        "publish": ["run", "guides", "tests"],
    }
    assert tuple(jobs["run"]["strategy"]["matrix"]["python"]) == PYTHONS
    # what .ci/run leaves out
    assert "pytest --release" in [step.get("run") for step in jobs["tests"]["steps"]]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    return {
        name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()
    }


def test_a_tag_publishes_its_own_version_only(workflow):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    _, checked, build = workflow["build"]
    assert build == "python -m hatchling build -d dist"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for tag, status in ((f"v{version}", 0), ("v9.9", 1)):
        environment = {**os.environ, "PATH": path, "GITHUB_REF_NAME": tag}
        done = subprocess.run(["bash", "-c", checked], cwd=ROOT, env=environment, check=False)
        assert done.returncode == status


@pytest.fixture(scope="session")
def built(for_release, tmp_path_factory):
    """Source archive and wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, folder=ROOT)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_the_version_stands_in_one_place():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    others = [ROOT / "CITATION.cff", ROOT / "mkdocs.yml", *(ROOT / "jax_lm").rglob("*.py")]
    written = re.compile(rf'(?m)(^__version__|^version:|["\'=]{re.escape(version)}["\'])')
    assert [path for path in others if written.search(path.read_text())] == []
    newest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert newest
    assert newest[1] == version


def test_the_source_archive_gives_the_wheel(built, tmp_path):
    archive, wheel = built
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        tmp_path,
        archive,
        folder=tmp_path,
    )
    names = [zipfile.ZipFile(path).namelist() for path in (wheel, next(tmp_path.glob("*.whl")))]
    assert sorted(names[0]) == sorted(names[1])
    assert not [
        name
        for name in names[0]
        if not re.match(r"jax_lm/|untrusted/|jax_diffucoder-[\w.]+\.dist-info/", name)
    ]
    assert any(name.endswith("licenses/LICENSE") for name in names[0])


@pytest.mark.parametrize(("version", "jax"), [*zip(PYTHONS, ("0.10", "0", "0"), strict=True)])
def test_the_wheel_runs_in_a_clean_environment(built, workflow, tmp_path, version, jax):
    """Python 3.11 has the oldest jax that is supported, as newer ones have left it."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    run(python, "-m", "venv", tmp_path / "clean", folder=tmp_path)
    programs = tmp_path / "clean" / "bin"
    run(programs / "pip", "install", "-q", "--no-compile", built[1], folder=tmp_path)
    packages = dict(
        line.lower().partition("==")[::2]
        for line in run(programs / "pip", "freeze", folder=tmp_path).splitlines()
    )
    assert packages["jax"].startswith(f"{jax}.")
    assert not packages.keys() & {"pytest", "hypothesis", "torch", "transformers", "fastapi"}
    assert run(programs / "diffucoder", "--version", folder=tmp_path).startswith("diffucoder 0.")
    assert "4,331,776" in run(programs / "diffucoder", "info", folder=tmp_path)
    # What a tag runs: README's first command, and what a careful user runs first.
    for command in workflow["run"][1:]:
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        said = run("bash", "-c", f"set -o pipefail; {command}", folder=tmp_path, PATH=path)
        assert "NOT STOPPED" not in said
    assert "fits" in run(
        programs / "diffucoder",
        "plan",
        "--model-config",
        "7b",
        "--topology",
        "v5e:2x2",
        "--estimate",
        folder=tmp_path,
    )
