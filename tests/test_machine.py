"""The machine's limits and its description."""

from jax_lm.benchmark import machine


def test_limits_are_positive_and_finite():
    limits = machine.machine_limits("float32", copy_bytes=2**22)
    assert 1e8 < limits.matmul_flops < 1e16
    assert 1e7 < limits.copy_bytes < 1e14


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
