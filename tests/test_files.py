import os
import socket
import threading
from pathlib import Path

import pytest

from jax_lm.cli.commands.answers import AnswerLog
from jax_lm.host.files import output_folder, write_whole


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "result")
    reader.join(10)
    assert read == ["result"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_what_cannot_be_opened_stays(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        with pytest.raises(OSError, match="socket"):
            write_whole(path, "x")
    assert path.is_socket()


def test_a_link_keeps_pointing(tmp_path):
    (tmp_path / "far").mkdir()
    link, file = tmp_path / "link", tmp_path / "far" / "file"
    link.symlink_to("far/file")
    for text in ("first", "second"):
        write_whole(link, text)
        assert link.is_symlink()
        assert file.read_text() == text
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_answers_go_on_in_files_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe': must be a file, or not exist yet"):
        AnswerLog(tmp_path / "pipe", "run")


@pytest.mark.parametrize("url", ["gs://bucket/run", "s3://bucket/run", "file:///run"])
def test_a_bucket_is_no_folder(tmp_path, monkeypatch, url):
    """A folder `gs:` would be made, and the run be in none of the places that were meant."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"must be a local path; a bucket can be mounted"):
        output_folder(Path(url))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_absent_is_created(tmp_path):
    write_whole(tmp_path / "absent" / "deeper" / "answers", "x")
    assert (tmp_path / "absent" / "deeper" / "answers").read_text() == "x"


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"'{tmp_path / 'file'}': must be a folder"):
        write_whole(tmp_path / "file" / "answers", "x")
