"""The folder of a run that may be killed and resumed: its settings and its JSON lines.

Knows no model, only plain data. `settings.json` is written once and compared afterwards.
"""

import fcntl
import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, ClassVar

from flax.traverse_util import flatten_dict

from jax_lm.config import Fields
from jax_lm.host.files import output_folder, whole_lines, write_json_whole

SETTINGS = "settings.json"
LOCK = ".lock"
# Bytes of each weight file that go into its digest.
SAMPLED_BYTES = 2**20
# Weight files of a folder in each layout: Hugging Face, GGUF, Orbax.
WEIGHT_FILES = ("*.safetensors", "*.gguf", "weights.orbax/**/*")

Record = Fields


class JsonLog(AbstractContextManager):
    """JSON lines that a run appends to a file; complete lines survive a kill.

    A subclass names its records, and interprets a record in `take`.
    """

    kind: ClassVar[str]
    file: IO[str] | None = None

    def open(self, path: Path, place: Path):
        """Hold a file for this process, to append to it; `place` names it in the error.

        Raises:
            ValueError: another process holds it.
        """
        # Append mode: an earlier run's lines stay, but for one that was cut off by a kill.
        self.file = path.open("a+", encoding="utf-8")
        lock(self.file, place)
        os.truncate(path, len(whole_lines(path)))

    def replay(self, path: Path):
        """Take all complete lines of an earlier run.

        Raises:
            ValueError: a line is not a record.
        """
        for number, line in enumerate(whole_lines(path).splitlines(), 1):
            try:
                self.take(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}: line {number} is not {self.kind} ({error})") from error

    @abstractmethod
    def take(self, record: Record):
        """Apply one record, of an earlier run or of this one."""

    def append(self, *records: Record):
        """Write records to disk, then take them."""
        if self.file is not None:
            self.file.writelines(json.dumps(record) + "\n" for record in records)
            self.file.flush()
            # On disk before they count: a kill, or a crash of the machine, loses no record that was
            # taken.
            os.fsync(self.file.fileno())
        for record in records:
            self.take(record)

    def close(self):
        if self.file is not None:
            self.file.close()

    def __exit__(self, *_: object):
        self.close()


class RunLog(JsonLog):
    """The JSON lines of a run in its folder, which is created if it does not exist.

    One process at a time holds the folder. A subclass names its file.

    Args:
        folder: None keeps nothing on disk.
        settings: everything that the results depend on.

    Raises:
        ValueError: the folder belongs to a run with other settings, is in use, or is damaged.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path | None, settings: Record):
        if folder is None:
            return
        output_folder(folder)
        path = folder / self.name
        if (folder / SETTINGS).exists() and not path.exists():
            raise ValueError(
                f"out={str(folder)!r} holds another kind of run, without {self.name}: give another folder"
            )
        # Lines without settings: nobody knows what they depend on.
        if not (folder / SETTINGS).exists() and path.exists() and path.stat().st_size:
            raise ValueError(
                f"out={str(folder)!r} has {self.name} without {SETTINGS}: give another folder"
            )
        try:
            self.open(path, folder)
            require_same(folder / SETTINGS, settings)
            self.replay(path)
        except (OSError, ValueError):
            self.close()
            raise


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, which is created if it does not exist.

    The lock ends with the process, however it ends.

    Raises:
        ValueError: another process holds it.
    """
    # The file stays: without it, two processes could lock two files of the same name.
    with (output_folder(folder) / LOCK).open("a", encoding="utf-8") as file:
        lock(file, folder)
        yield


def lock(file: IO[str], folder: Path):
    """Lock the file for this process; raises ValueError if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"out={str(folder)!r}: another run is writing there") from error


def require_same(path: Path, settings: Record):
    """Write the settings of a new run to a file, or compare them with those of an earlier one.

    Raises:
        ValueError: a setting differs; the message names the first one.
    """
    # In the form in which JSON reads them back: tuples become lists.
    wanted = json.loads(json.dumps(settings))
    if not path.exists():
        write_json_whole(path, wanted, 2)
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds no settings")
    if difference := differing_setting(held, wanted):
        begun = f"out={str(path.parent)!r} was begun with {difference}"
        raise ValueError(f"{begun}: give another folder, or the same settings")


def differing_setting(held: Record, wanted: Record, ignored: Collection[str] = ()) -> str | None:
    """Return the first setting in which two runs differ, with both values; None if they agree.

    A setting that one of them lacks counts as None. Nested settings have dotted names.
    """
    old = flatten_dict(held, sep=".")
    new = flatten_dict(wanted, sep=".")
    for name in sorted(old.keys() | new.keys()):
        if name not in ignored and old.get(name) != new.get(name):
            return f"{name}={old.get(name)!r}, not {new.get(name)!r}"
    return None


def weights_digest(*folders: Path) -> str:
    """Return a digest of the weight files of folders, so that another training has another digest.

    It covers names, sizes and a mebibyte from the middle of each file.
    """
    digest = hashlib.sha256()
    found = (
        path for folder in folders for pattern in WEIGHT_FILES for path in folder.glob(pattern)
    )
    for path in sorted(filter(Path.is_file, found)):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            # Not all of it, which may be large, nor its header, which training does not change.
            file.seek(max(0, (size - SAMPLED_BYTES) // 2))
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()
