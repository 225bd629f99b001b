"""Rows lay themselves out as tables and charts; the name of a value says how it is written."""

from jax_lm.reports.tables import row_chart, table_section

ROWS = [
    {"seconds": 0.12345, "peak_bytes": 2**29, "all_seconds": [0.1], "note": ""},
    {"seconds": 12.0, "tokens_per_second": 1234.56, "fits": True},
]


def test_a_table_has_a_column_for_each_plain_value():
    section = table_section("Parts", ROWS, name="parts")
    assert section.columns == ["seconds", "peak GiB", "tokens per second", "fits"]
    assert section.rows == [["0.123", "0.5", "", ""], ["12", "", "1,234.6", "yes"]]
    assert table_section("Parts", ROWS, leave_out=("fits", "peak_bytes")).columns == [
        "seconds",
        "tokens per second",
    ]


def test_columns_may_have_formats():
    section = table_section(
        "Parts", [{"a": {"b": 0.5}, "c": 2}], {"share": "{a[b]:.0%}", "both": "{c} of {a[b]}"}
    )
    assert (section.columns, section.rows) == (["share", "both"], [["50%", "2 of 0.5"]])


def test_a_chart_has_a_line_for_each_group():
    rows = [{"batch": 1, "rate": 5.0, "preset": "exact"}, {"batch": 2, "preset": "exact"},
            {"batch": 1, "rate": 12.0, "preset": "fast"}]  # fmt: skip
    chart = row_chart("Rates", rows, "batch", "rate", by="preset")
    assert [chart.count(text) for text in (">exact</text>", ">fast</text>", "<polyline")] == [
        1,
        1,
        2,
    ]
    # The axis ends at the next of 10, 20, 50.
    assert ">20</text>" in chart
    assert ">rate</text>" in row_chart("Rates", rows, "batch", "rate")
    assert row_chart("Rates", rows[1:2], "batch", "rate", by="preset") == ""
