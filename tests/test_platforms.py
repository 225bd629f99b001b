"""Libraries of accelerators that are not here stay quiet; those of accelerators that are here are
left alone.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jax_lm.host import platforms

TPU, NETWORK = ("0x1ae0", "0x120000"), ("0x1ae0", "0x020000")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine: what is on its bus, whether it has an NVIDIA device, and which libraries are
    installed.
    """

    def make(*devices, nvidia=False, libtpu=True, plugins=()):
        for number, (vendor, kind) in enumerate(devices):
            folder = tmp_path / "sys" / "bus" / "pci" / "devices" / f"0000:00:0{number}.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "class").write_text(f"{kind}\n")
        if nvidia:
            (tmp_path / "dev").mkdir()
            (tmp_path / "dev" / "nvidiactl").touch()
        found = importlib.util.find_spec("json") if libtpu else None
        monkeypatch.setattr(
            platforms.importlib.util, "find_spec", lambda name: found if name == "libtpu" else None
        )
        monkeypatch.setattr(platforms, "plugin_names", lambda: set(plugins))
        monkeypatch.setattr(platforms.sys, "modules", {})
        monkeypatch.setattr(platforms.sys, "meta_path", [*sys.meta_path])
        return tmp_path

    return make


def silenced(root, **environment):
    platforms.silence_absent(environment, root)
    return environment


def test_a_machine_without_accelerators_is_a_cpu(machine):
    assert silenced(machine(NETWORK, ("0x8086", "0x060000"), plugins=("xla_cuda12",))) == {
        "JAX_PLATFORMS": "cpu"
    }


def test_without_their_libraries_nothing_is_said(machine):
    assert silenced(machine(libtpu=False)) == {}


@pytest.mark.parametrize("plugins", [(), ("xla_cuda12",)])
def test_a_tpu_is_left_alone(machine, plugins):
    assert silenced(machine(NETWORK, TPU, plugins=plugins)) == {}


@pytest.mark.parametrize(
    ("nvidia", "plugin"), [(True, "xla_cuda12"), (False, "xla_rocm7"), (False, "metal_plugin")]
)
def test_beside_another_accelerator_libtpu_only_prints_less(machine, nvidia, plugin):
    assert silenced(machine(nvidia=nvidia, plugins=(plugin,))) == platforms.QUIET_TPU


def test_another_accelerator_alone_is_left_alone(machine):
    assert silenced(machine(libtpu=False, plugins=("xla_rocm7",))) == {}


def test_the_finder_is_there_once(machine):
    root = machine(plugins=("xla_cuda12",))
    silenced(root)
    silenced(root)
    assert sum(isinstance(finder, platforms.QuietFinder) for finder in sys.meta_path) == 1


@pytest.mark.parametrize("name", platforms.PLATFORM_VARIABLES)
def test_what_the_user_has_decided_stays(machine, name):
    assert silenced(machine(), **{name: "tpu"}) == {name: "tpu"}


def test_log_levels_of_the_user_stay(machine):
    found = silenced(machine(nvidia=True, plugins=("xla_cuda12",)), TPU_MIN_LOG_LEVEL="0")
    assert found == platforms.QUIET_TPU | {"TPU_MIN_LOG_LEVEL": "0"}


def test_a_plugin_without_its_device_does_nothing_until_it_is_to_compile(machine):
    silenced(machine(plugins=("xla_cuda12",)))
    assert platforms.sys.modules["jax_plugins.xla_cuda12"].initialize() is None
    platforms.admit_cuda_compiler()
    assert platforms.sys.modules == {}


def test_kernels_of_an_absent_device_load_without_a_word(tmp_path, capfd, monkeypatch):
    finder = platforms.QuietFinder()
    (tmp_path / "jax_cuda12_plugin").mkdir()
    (tmp_path / "jax_cuda12_plugin" / "_solver.so").touch()
    spec = finder.find_spec("jax_cuda12_plugin._solver", [str(tmp_path / "jax_cuda12_plugin")])

    def create(loader, spec):
        os.write(
            2,
            b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
        )
        os.write(
            2,
            b"I0000 cudart_stub.cc:31] Could not find cuda drivers on your machine\nE0000 out of luck\n",
        )
        return pytest

    monkeypatch.setattr(platforms.ExtensionFileLoader, "create_module", create)
    spec.loader.create_module(spec)
    assert capfd.readouterr().err == "E0000 out of luck\n"
    assert finder.find_spec("json", None) is None
    # a folder without __init__.py
    namespace = importlib.import_module("experiments").__path__
    assert finder.find_spec("experiments.recipes", namespace) is None
    assert finder.find_spec("jax_cuda12_plugin._none", [str(tmp_path)]) is None


def test_a_plugin_that_is_loaded_stays(machine, monkeypatch):
    root = machine(plugins=("xla_cuda12",))
    platforms.sys.modules["jax_plugins.xla_cuda12"] = pytest
    silenced(root)
    platforms.admit_cuda_compiler()
    assert platforms.sys.modules["jax_plugins.xla_cuda12"] is pytest


@pytest.mark.skipif(any(map(os.path.exists, platforms.NVIDIA_DEVICES)), reason="there is a GPU")
@pytest.mark.parametrize("module", ["jax", "jax_lm.inference"])
def test_the_engine_is_imported_quietly_with_the_compiler_of_an_absent_gpu(tmp_path, module):
    """As the extra `plan-gpu` installs it: JAX starts every plugin, even without its device."""
    plugin = tmp_path / "jax_plugins" / "xla_cuda12"
    plugin.mkdir(parents=True)
    said = "Could not find cuda drivers on your machine"
    (plugin / "__init__.py").write_text(f"def initialize():\n    raise RuntimeError({said!r})\n")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in platforms.PLATFORM_VARIABLES
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    program = [sys.executable, "-c", f"import {module}, jax; print(jax.devices())"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert "CpuDevice" in done.stdout
    assert (said in done.stderr) == (module == "jax")
    assert module == "jax" or done.stderr == ""
