"""Tokenised data sets: every token once an epoch, what each process reads, and how little it holds."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_lm.data.batches import Order, SampleStream
from jax_lm.data.token_shards import TextRows, TokenShards, permute

LENGTHS = ([3, 1, 9, 4], [2], [30, 5, 5, 1, 1, 8])
"""Of the samples of each shard."""


def write_shards(folder, lengths, *, kind="text", dtype="<u2", visible=1):
    """Write shards whose tokens count on from 0."""
    shards, token = [], 0
    for number, sizes in enumerate(lengths):
        ids = np.arange(token, token + sum(sizes)) % 60_000
        token += sum(sizes)
        ids.astype(dtype).tofile(folder / f"{number}.tokens")
        index = np.concatenate([np.cumsum(sizes), np.full(len(sizes), visible)]).astype("<i8")
        index.tofile(folder / f"{number}.index")
        shards.append({"name": str(number), "tokens": sum(sizes), "samples": len(sizes)})
    fields = {
        "format": 1,
        "kind": kind,
        "tokenizer": "t",
        "dtype": dtype,
        "refused": 0,
        "digest": "d",
    }
    (folder / "dataset.json").write_text(json.dumps(fields | {"shards": shards}))
    return TokenShards.open(folder, kind, "t")


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path, LENGTHS)


@given(size=st.integers(1, 400), seed=st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_permutation_takes_every_number_once(size, seed):
    numbers = [permute(number, size, b"%d" % seed) for number in range(size)]
    assert sorted(numbers) == list(range(size))


def test_permutation_looks_random():
    """Where 0 goes under 4,000 keys, and how far neighbours come apart; four standard deviations."""
    places = Counter(permute(0, 10, b"%d" % key) for key in range(4000))
    assert all(abs(places[place] - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5 for place in range(10))
    order = np.array([permute(number, 1000, b"x") for number in range(1000)])
    together = np.sum(np.abs(np.diff(order)) == 1)
    assert together < 2 + 4 * 2**0.5


def test_samples_are_read_alone(tmp_path):
    shards = write_shards(tmp_path, LENGTHS, kind="conversations", dtype="<u4", visible=2)
    sizes, start = [size for shard in LENGTHS for size in shard], 0
    assert shards.lengths.tolist() == sizes
    for number, size in enumerate(sizes):
        row = shards[number]
        assert row.ids == tuple(range(start, start + size))
        assert row.canvas == ((False, False) + (True,) * (size - 2))
        assert row.open
        start += size


@pytest.mark.parametrize("max_length", [1, 4, 7, 16, 100])
def test_rows_hold_every_token_once_an_epoch_in_pieces_of_texts(shards, max_length):
    rows = TextRows.of(shards, max_length, seed=3)
    ends = np.cumsum([size for shard in LENGTHS for size in shard])
    starts = {0, *ends.tolist()}
    orders = []
    for epoch in range(2):
        groups = rows.rows(rows.start(epoch), rows.count)
        orders.append([group[0][0] for group in groups])
        assert all(sum(stop - start for start, stop in group) <= max_length for group in groups)
        ids = [token for group in groups for piece in group for token in rows[piece].ids]
        assert sorted(ids) == list(range(shards.tokens))
        for start, stop in (piece for group in groups for piece in group):
            # A piece begins where a text or a row does, ends likewise, and no text ends inside it.
            assert start in starts or start % max_length == 0
            assert stop in starts or stop % max_length == 0
            assert not [end for end in ends if start < end < stop]
    assert max_length == 100 or orders[0] != orders[1]


def test_held_out_rows_are_not_learnt(shards):
    learnt, held_out = TextRows.of(shards, 4, seed=0).split(0.3)
    assert held_out is not None
    parts = [{group[0][0] for group in part.rows(0, part.count)} for part in (learnt, held_out)]
    assert not parts[0] & parts[1]
    assert sorted(parts[0] | parts[1]) == list(range(0, shards.tokens, 4))
    assert TextRows.of(shards, 4, seed=1).split(0.3)[1].rows(0, 3) != held_out.rows(0, 3)
    with pytest.raises(ValueError, match=r"held_out_share=0.99: holds out 18 of 18 rows"):
        TextRows.of(shards, 4, seed=0).split(0.99)


class Reads(TokenShards):
    """Remembers which tokens were read."""

    def map_file(self, shard, end, dtype, first, count):
        if end == ".tokens":
            self.__dict__.setdefault("seen", []).append((shard, first, count))
        return super().map_file(shard, end, dtype, first, count)


@pytest.mark.parametrize("kind", ["text", "conversations"])
def test_processes_read_disjoint_parts_of_one_batch(tmp_path, kind):
    write_shards(tmp_path, LENGTHS, kind=kind)

    def batches(process, processes):
        shards = Reads.open(tmp_path, kind, "t")
        order = TextRows.of(shards, 8, 0) if kind == "text" else Order(shards.lengths, 0)
        samples = order if kind == "text" else shards
        stream = SampleStream(samples, order, max_length=32, batch_size=4, pad_id=0, seed=0)
        return [
            stream.batch(step, process=process, processes=processes) for step in range(2)
        ], shards.__dict__["seen"]

    whole, read = batches(0, 1)
    parts = [batches(process, 2) for process in range(2)]
    for step, batch in enumerate(whole):
        for number, array in enumerate(batch[:3]):
            np.testing.assert_array_equal(
                np.concatenate([made[step][number] for made, _ in parts]), array
            )
    (_, ours), (_, theirs) = parts
    assert Counter(ours) + Counter(theirs) == Counter(read)
    # All of one epoch, in which no token is read by both.
    assert not set(ours) & set(theirs)


BOUNDED = """
import sys
from pathlib import Path
from jax_lm.data.batches import SampleStream
from jax_lm.data.token_shards import TextRows, TokenShards

shards = TokenShards.open(Path(sys.argv[1]), "text", "t")
rows = TextRows.of(shards, 4096, 0)
stream = SampleStream(rows, rows, max_length=4096, batch_size=8, pad_id=0, seed=0)
stream.batch(0)


def most():
    # Not ru_maxrss, which begins with what the parent had.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


before, total = most(), 0
for step in range(stream.steps(1.0)):
    total += int((stream.batch(step).samples >= 0).sum())
print(total, shards.tokens, (most() - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="measures memory by /proc")
def test_reading_everything_holds_nothing(tmp_path):
    """An epoch of 128 MiB adds less than 16 MiB to what the process holds."""
    write_shards(tmp_path, [[8192] * 1024] * 4, dtype="<u4")
    child = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    seen, tokens, grown = map(int, child.stdout.split())
    assert seen == tokens == 2**25
    assert grown < 2**24, f"{grown / 2**20:.0f} MiB"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda folder: (folder / "1.tokens").unlink(),
            r"1.tokens is missing, or does not have its 4 bytes",
        ),
        (
            lambda folder: (folder / "2.index").write_bytes(b"half"),
            r"2.index is missing, or does not have its 96 bytes",
        ),
        (
            lambda folder: (folder / "dataset.json").unlink(),
            r"no dataset.json.*`diffucoder data tokenize` writes",
        ),
        (
            lambda folder: (folder / "dataset.json").write_text("{"),
            r"no dataset.json that can be read",
        ),
        (
            lambda folder: (folder / "dataset.json").write_text("1"),
            r"no dataset.json that can be read",
        ),
        (
            lambda folder: (folder / "dataset.json").write_text("{}"),
            r"tokenised with format=None, not 1",
        ),
    ],
)
def test_damaged_folders_are_refused(tmp_path, shards, change, named):
    change(tmp_path)
    with pytest.raises(ValueError, match=named):
        TokenShards.open(tmp_path, "text", "t")


def test_other_kinds_and_tokenizers_are_refused(tmp_path, shards):
    with pytest.raises(ValueError, match="tokenised with kind='text', not 'conversations'"):
        TokenShards.open(tmp_path, "conversations", "t")
    with pytest.raises(ValueError, match="tokenised with tokenizer='t', not 'other'"):
        TokenShards.open(tmp_path, "text", "other")
