"""Pictures are well-formed, escape what they are told, and put values where they belong."""

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from jax_lm.reports.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    bar_chart,
    format_number,
    heat_chart,
    line_chart,
    round_ticks,
    round_up,
)
from jax_lm.reports.tables import cell_text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("missing", [math.nan, None])
def test_a_line_chart_has_a_line_per_series_and_leaves_out_what_is_missing(missing):
    chart = line_chart(
        "a <b>", "k & l", "share", {"one": [(1, 0.0), (2, 1.0)], "<two>": [(1, 0.5), (2, missing)]}
    )
    root = ElementTree.fromstring(chart)
    lines = [line.get("points").split() for line in root.iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [2, 1]
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights == [HEIGHT - BOTTOM, TOP]
    assert "<two>" in [text.text for text in root.iter(f"{SVG}text")]


def test_a_line_chart_of_nothing_is_a_picture():
    ElementTree.fromstring(line_chart("none", "x", "y", {"one": []}))
    ElementTree.fromstring(line_chart("one point", "x", "y", {"one": [(0.0, 0.5)]}))


def test_an_axis_may_end_elsewhere():
    series = {"one": [(1, 0), (2, 2500.0)], "two": [(1, 5000), (2, 0.0)]}
    root = ElementTree.fromstring(line_chart("speed", "batch", "tokens/s", series, top=5000))
    low, middle = HEIGHT - BOTTOM, (HEIGHT - BOTTOM + TOP) / 2
    lines = [
        [float(point.split(",")[1]) for point in line.get("points").split()]
        for line in root.iter(f"{SVG}polyline")
    ]
    assert lines == [[low, middle], [TOP, low]]
    assert [float(circle.get("cy")) for circle in root.iter(f"{SVG}circle")] == [
        low,
        middle,
        TOP,
        low,
    ]
    assert "5,000" in [text.text for text in root.iter(f"{SVG}text")]
    assert [round_up(value) for value in (0, 0.03, 1, 1.01, 7, 1234)] == [1, 0.05, 1, 2, 10, 2000]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.296, 8.66, [2, 4, 6, 8]),
        (0, 255, [0, 100, 200]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-3, 3, [-2, 0, 2]),
    ],
)
def test_ticks_are_round_numbers_within_the_axis(low, high, ticks):
    assert round_ticks(low, high) == pytest.approx(ticks)


def test_an_axis_may_begin_elsewhere():
    picture = line_chart("quality", "x", "y", {"a": [(0, 60), (1, 80)]}, bottom=60, top=80)
    assert f'points="{LEFT}.0,{HEIGHT - BOTTOM}.0 {WIDTH - RIGHT}.0,{TOP}.0"' in picture
    assert ">64</text>" in picture


def test_bars_are_as_long_as_their_values():
    bars = [("<eager>", "torch", 10.0), ("exact", "jax", 40.0), ("turbo", "jax", 2000.0)]
    root = ElementTree.fromstring(bar_chart("speed", bars))
    drawn = list(root.iter(f"{SVG}rect"))
    lengths = [float(rect.get("width")) for rect in drawn]
    assert [round(length / lengths[2], 3) for length in lengths] == [0.005, 0.02, 1.0]
    assert len({rect.get("fill") for rect in drawn}) == 2
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"<eager>", "10", "2,000"} <= set(texts)
    assert float(root.get("height")) > float(drawn[-1].get("y")) + float(drawn[-1].get("height"))


def test_a_heat_chart_draws_what_is_above_zero():
    root = ElementTree.fromstring(heat_chart("order", np.array([[1.0, 0.0], [0.5, 0.5]]), 2))
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill-opacity")]
    assert [float(rect.get("fill-opacity")) for rect in cells] == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 37, [0, 10, 20, 30]), (0, 0.6, [0, 0.2, 0.4, 0.6]), (0, 0.3, [0, 0.1, 0.2, 0.3]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)  # fmt: skip
def test_ticks_reach_both_ends(low, high, ticks):
    assert round_ticks(low, high) == pytest.approx(ticks)


def test_labels_of_numbers():
    values = (0.12345, 5, 999.4, 999.6, 12345)
    assert [format_number(value) for value in values] == ["0.123", "5", "999", "1,000", "12,345"]
    assert cell_text("seconds", 999.6) == "1,000"
