"""The models in the hub's cache: what each is, deleting one."""

import json
import shutil

import pytest

from jax_lm.cli import main as cli
from jax_lm.conversion import hub_cache

COMMIT, OTHER, FOREIGN = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch, builtin_folder):
    """A cache as the hub's client lays it out: a model with two revisions, and one that cannot be
    used.
    """
    for name, commits in (
        ("me--coder", {"main": COMMIT, "v1": OTHER}),
        ("openai--gpt2", {"main": FOREIGN}),
    ):
        repository = tmp_path / f"models--{name}"
        (repository / "blobs").mkdir(parents=True)
        (repository / "refs").mkdir()
        for ref, commit in commits.items():
            (repository / "refs" / ref).write_text(commit)
            snapshot = repository / "snapshots" / commit
            snapshot.mkdir(parents=True)
            blob = repository / "blobs" / f"{commit}-config"
            blob.write_text(
                (builtin_folder / "config.json").read_text()
                if "coder" in name
                else '{"model_type": "gpt2"}'
            )
            (snapshot / "config.json").symlink_to(blob)
    weights = tmp_path / "models--me--coder" / "blobs" / "weights"
    shutil.copyfile(builtin_folder / "model.safetensors", weights)
    (tmp_path / "models--me--coder" / "snapshots" / COMMIT / "model.safetensors").symlink_to(
        weights
    )
    monkeypatch.setattr(
        hub_cache, "scan_cache_dir", lambda scan=hub_cache.scan_cache_dir: scan(tmp_path)
    )
    return tmp_path


def run(capsys, *words):
    status = cli.main(["models", *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_what_each_model_is(cache, capsys):
    status, out, _ = run(capsys, "--json")
    found = {each["model"]: each for each in json.loads(out)}
    assert status == 0
    assert list(found) == ["me/coder", "me/coder@v1", "openai/gpt2"]
    assert found["me/coder"]["what"] == "Dream, 0.0B parameters, masked diffusion"
    assert found["me/coder@v1"]["what"].endswith("without safetensors weights")
    assert "not usable here: config model_type='gpt2'" in found["openai/gpt2"]["what"]
    assert found["me/coder"]["bytes"] > 8_000_000
    status, out, _ = run(capsys)
    assert (status, out.count("me/coder"), "GB in all" in out) == (0, 2, True)


def test_deleting_is_said_first(cache, capsys):
    weights = cache / "models--me--coder" / "blobs" / "weights"
    status, out, _ = run(capsys, "--delete", "me/coder")
    assert (status, weights.exists()) == (0, True)
    assert "would free" in out
    status, out, _ = run(capsys, "--delete", "me/coder@v1", "--yes")
    assert (status, weights.exists()) == (0, True)
    status, out, _ = run(capsys, "--delete", "me/coder", "--yes")
    assert (status, (cache / "models--me--coder").exists()) == (0, False)
    status, _, err = run(capsys, "--delete", "me/coder", "--yes")
    assert status == 2
    assert "not in the hub's cache, which holds openai/gpt2" in err


def test_a_revision_that_may_be_several_is_refused(cache, capsys):
    # the name of a branch, and the beginning of another hash
    (cache / "models--me--coder" / "refs" / "aaa").write_text(OTHER)
    status, _, err = run(capsys, "--delete", "me/coder@aaa", "--yes")
    assert status == 2
    assert f"may be {COMMIT} or {OTHER}" in err
    assert len(list((cache / "models--me--coder" / "snapshots").iterdir())) == 2


def test_a_revision_has_the_first_of_its_names(cache, capsys):
    for name in ("zeta", "alpha", "w3"):
        (cache / "models--me--coder" / "refs" / name).write_text(OTHER)
    assert '"me/coder@alpha"' in run(capsys, "--json")[1]


def test_an_empty_cache(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        hub_cache, "scan_cache_dir", lambda scan=hub_cache.scan_cache_dir: scan(tmp_path / "absent")
    )
    assert run(capsys) == (0, "no model in the hub's cache: --model OWNER/NAME downloads one\n", "")
    assert run(capsys, "--json")[1] == "[]\n"
