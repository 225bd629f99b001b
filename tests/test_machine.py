"""The machine's limits and its description."""

from types import SimpleNamespace

import numpy as np

from jax_lm.benchmark import machine
from jax_lm.host import memory


def test_limits_are_positive_and_finite():
    limits = machine.machine_limits("float32", copy_bytes=2**22)
    assert 1e8 < limits.matmul_flops < 1e16
    assert 1e7 < limits.copy_bytes < 1e14


def test_a_call_chains_what_is_measured(monkeypatch):
    """The cost of a call is shared by all of a chain."""
    monkeypatch.setitem(machine.CHAIN, "cpu", 3)
    monkeypatch.setattr(machine, "LIMIT_REPEATS", 1)
    computed = []

    def one_second(call, repeats):
        computed.append(np.asarray(call()))
        return SimpleNamespace(row={"all_seconds": [1.0] * repeats})

    monkeypatch.setattr(machine, "time_call", one_second)
    limits = machine.machine_limits("float32", copy_bytes=2**22)
    assert limits.matmul_flops == 3 * 2 * 2048**3
    assert limits.copy_bytes == 3 * 2 * 2**22
    product, copy = computed
    assert np.isfinite(product).all()
    assert (copy == 3).all()


def test_plain_data_names_versions_and_device():
    here = machine.about()
    lines = machine.machine_lines(here)
    assert f"jax {here['jax']}" in lines["software"]
    assert f"{here['cpu_count']} CPU cores" in lines["host"]
    assert here["platform"] in lines["device"]


def test_commands_can_be_typed_again():
    words = ["/venv/jax_lm/__main__.py", "bench", "--only", "exact, draft 4"]
    assert machine.command_line(words) == "diffucoder bench --only 'exact, draft 4'"
    assert machine.command_line(["experiments/full_width.py"]) == "full_width.py"


def test_the_cache_of_files_is_free_memory_in_a_container(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable: 48 kB\n")
    (tmp_path / "max").write_text("32768\n")
    (tmp_path / "current").write_text("30000\n")
    (tmp_path / "memory.stat").write_text("anon 9000\nactive_file 15000\ninactive_file 5000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUPS", ((str(tmp_path / "max"), str(tmp_path / "current")),))
    assert memory.host_memory() == 32768
    assert memory.host_memory("MemAvailable") == 32768 - 10000
