"""The folder of a run: settings compared at any depth, digests, files that are whole or not there."""

import pytest

from jax_lm.host.files import write_whole
from jax_lm.reports.run_folder import RunLog, weights_digest


class Notes(RunLog):
    name, kind = "notes.jsonl", "a note"

    def take(self, record):
        pass


def test_settings_are_compared_at_any_depth(tmp_path):
    def settings(**decoding):
        return {"model": "m", "generation": {"steps": 3, "decoding": {"preset": "fast"} | decoding}}

    Notes(tmp_path, settings(cache=None)).close()
    # What is absent counts as None.
    Notes(tmp_path, settings()).close()
    with pytest.raises(
        ValueError, match=r"begun with generation\.decoding\.cache=None, not 'dual'"
    ):
        Notes(tmp_path, settings(cache="dual"))


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "report.md"
    write_whole(path, "one")
    with pytest.raises(TypeError):
        write_whole(path, 3)
    assert path.read_text() == "one"
    assert [each.name for each in tmp_path.iterdir()] == ["report.md"]


@pytest.mark.parametrize("file", ["model.safetensors", "model.gguf", "weights.orbax/d/chunk"])
def test_other_weights_have_another_digest(tmp_path, file):
    weights = tmp_path / file
    weights.parent.mkdir(parents=True, exist_ok=True)
    weights.write_bytes(bytes(3 * 2**20))
    before = weights_digest(tmp_path)
    content = bytearray(3 * 2**20)
    content[3 * 2**19] = 1
    weights.write_bytes(content)
    assert weights_digest(tmp_path) != before
    # The folder of an adapter counts too.
    assert weights_digest(tmp_path / "none", tmp_path) == weights_digest(tmp_path)
