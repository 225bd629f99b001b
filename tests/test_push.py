"""To the hub and back, through its official client and a hub of our own: what is sent, and who
hears the token.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from cases import hub as local_hub

from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.cli.main import main
from jax_lm.conversion import push as hub

REPO = "me/tiny-diffucoder"
RUN = """
import json, os, sys
from huggingface_hub import constants
from jax_lm.cli.main import main
constants.DOWNLOAD_CHUNK_SIZE = 2**16  # the client goes on from the last whole piece, of 10 MB by itself
for token, *commands in json.loads(sys.argv[1]):
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    for command in commands:
        print(json.dumps(command), flush=True)
        print("status", main(command), flush=True)
    print("END", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, builtin_folder):
    """A checkpoint with things beside it that must stay here."""
    folder = tmp_path_factory.mktemp("hub") / "checkpoint"
    shutil.copytree(builtin_folder, folder, ignore=shutil.ignore_patterns("README.md"))
    for name in ("modeling_dream.py", "params.pkl", ".env", "notes.txt", "stray.safetensors"):
        (folder / name).write_bytes(b"secret")
    return folder


def run(cache, address, *asked, **environment):
    """Run commands in a process of their own, after the token of each group of them; returns the
    statuses of each group, and all that it said.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))
    }
    kept |= {
        "HF_ENDPOINT": address,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_XET": "1",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(asked)], env=kept | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=True,
    )  # fmt: skip
    said = re.split(r"^END\n", done.stdout, flags=re.M)[:-1]
    assert len(said) == len(asked)
    return [
        ([int(status) for status in re.findall(r"^status (\d+)", text, re.M)], text)
        for text in said
    ]


@pytest.fixture(scope="module")
def story(folder, tmp_path_factory):
    """Send it, read it back over a line that breaks, and again without the hub."""
    cache = tmp_path_factory.mktemp("cache")
    # What the client keeps in a file is not ours to send.
    (cache / "token").write_text("hf_from_a_file")
    push, verify = ["push", str(folder), REPO, "--yes"], ["verify", f"{REPO}@main"]
    with local_hub.serving() as server:
        # The first download of weights breaks.
        server.broken = 1
        groups = run(
            cache,
            server.address,
            ("", push, verify),
            ("hf_wrong", push),
            (local_hub.TOKEN, push, verify, ["verify", f"{REPO}@missing"]),
        )
        told = dict(zip(("no token", "wrong token", "right token"), groups, strict=True))
        address = server.address
    (told["offline"],) = run(cache, address, ("", verify), HF_HUB_OFFLINE="1")
    return told, server


def test_what_is_sent_arrives_and_nothing_else(story, folder):
    files = story[1].repos[REPO]["files"]
    card = files.pop("README.md").decode()
    assert files == {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name in files
    }
    assert {"config.json", "vocab.json", "merges.txt", "model.safetensors"} <= set(files)
    assert not {"modeling_dream.py", "params.pkl", ".env", "notes.txt", "stray.safetensors"} & set(
        files
    )
    assert card.startswith("---\nlibrary_name: jax-diffucoder\n")
    assert f"diffucoder generate --model {REPO}" in card


def test_a_new_repository_is_private(story):
    assert story[1].repos[REPO]["private"] in (True, "private")


def test_the_token_comes_from_the_environment_and_is_never_printed(story):
    told, server = story
    assert told["no token"][0] == [2, 2]
    assert "HF_TOKEN is not set" in told["no token"][1]
    assert told["wrong token"][0] == [2]
    assert "the hub rejected the upload" in told["wrong token"][1]
    # In this order: nothing is asked with a token before there is one.
    sent = [headers.get("authorization") for method, _, headers in server.seen if method != "PUT"]
    assert list(dict.fromkeys(sent)) == [None, "Bearer hf_wrong", f"Bearer {local_hub.TOKEN}"]
    secrets = (local_hub.TOKEN, "hf_wrong", "hf_from_a_file")
    assert not any(secret in said for _, said in told.values() for secret in secrets)


def test_what_was_sent_is_downloaded_over_a_line_that_breaks(story):
    told, server = story
    assert told["right token"][0] == [0, 0, 2], told["right token"][1]
    assert f"{REPO}@missing" in told["right token"][1].split("status 0")[-1]
    resumed = [
        headers["range"]
        for method, path, headers in server.seen
        if "range" in headers and method == "GET"
    ]
    assert any(not value.startswith("bytes=0-") for value in resumed)
    assert server.broken == 0


def test_without_the_hub_the_cache_serves(story):
    assert story[0]["offline"][0] == [0], story[0]["offline"][1]


def test_a_dry_run_sends_nothing(folder, monkeypatch, capsys):
    monkeypatch.setattr(hub, "HfApi", lambda **_: pytest.fail("spoke to the hub"))
    assert main(["push", str(folder), REPO, "--license", "apache-2.0"]) == 0
    said = capsys.readouterr().out
    assert "nothing was sent" in said
    assert "license: apache-2.0" in said
    assert re.search(r"left out: .*modeling_dream.py", said)


def test_an_orbax_folder_is_named_as_such(folder, tmp_path):
    (tmp_path / "weights.orbax").mkdir()
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"is in the Orbax layout.*diffucoder convert"):
        hub.prepare_upload(tmp_path, REPO)


def test_the_card_promises_no_package_index(folder):
    card = hub.model_card(folder, REPO, "")
    assert "pip install" not in card
    assert f'diffucoder generate --model {REPO} "def fibonacci(n):"' in card


def test_a_card_of_their_own_goes_as_it_is(folder, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    (own / "README.md").write_text("ours")
    upload = hub.prepare_upload(own, REPO)
    assert upload.card is None
    assert own / "README.md" in upload.files


@pytest.mark.parametrize("repo", ["tiny", "me/tiny@main", "me/a/b", ""])
def test_a_repository_has_an_owner_and_a_name(folder, repo):
    with pytest.raises(ValueError, match=re.escape(f"repo={repo!r}: must be like owner/name")):
        hub.prepare_upload(folder, repo)


def test_a_damaged_checkpoint_is_not_sent(folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_size": 48}))
    with pytest.raises(CheckpointError, match="is not uploaded"):
        hub.prepare_upload(broken, REPO)
    with pytest.raises(CheckpointError, match="is not a folder"):
        hub.prepare_upload(tmp_path / "absent", REPO)
