"""Measurements survive JSON, are refused when they are others, and lay themselves out as tables."""

import json
from dataclasses import dataclass

import pytest

from jax_lm.benchmark.records import plain_data, read_record, table_section


@dataclass(frozen=True, kw_only=True)
class Part:
    seconds: float
    peak_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    fits: bool = True
    tokens_per_second: float = 1234.5


def test_records_survive_json():
    whole = Whole(name="a", parts=(Part(seconds=1.0), Part(seconds=2.0)), best=Part(seconds=1.0))
    assert read_record(Whole, json.loads(json.dumps(plain_data(whole)))) == whole
    assert "best" not in plain_data(Whole(name="a"))
    assert read_record(Whole, {"name": "a", "best": None}) == Whole(name="a")


@pytest.mark.parametrize("data", [{}, {"name": "a", "other": 1}, {"name": "a", "parts": [{"speed": 1}]}, ["name"]])
def test_other_data_is_refused(data):
    with pytest.raises(ValueError, match=r"^this is no Whole: "):
        read_record(Whole, data)


def test_a_table_has_a_column_for_each_plain_field():
    section = table_section("Parts", [Part(seconds=0.12345, peak_bytes=2**29), Part(seconds=12.0)], name="parts")
    assert section.columns == ["seconds", "peak GiB"]
    assert section.rows == [["0.123", "0.50"], ["12", "0.00"]]
    assert table_section("Whole", [Whole(name="a")], ("best",)).rows == [["a", "yes", "1,234.5"]]
