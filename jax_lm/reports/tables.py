"""Make tables and charts from rows.

A row is a plain dict of measured values, as it is written to JSON. The name of a value says its
unit: `seconds`, `peak_bytes`, `tokens_per_second`. Knows no measurement.
"""

from collections.abc import Collection, Iterable, Sequence

from jax_lm.config import Fields, Names
from jax_lm.reports.charts import Number, line_chart, round_up
from jax_lm.reports.document import Section

Row = Fields
Measurements = Sequence[Row]

GIB = 2**30
# Names of values that are shown as percentages, and as powers of ten.
SHARES = ("roofline", "overhead")
DIFFERENCES = ("relative", "largest")


def table_section(
    title: str,
    rows: Measurements,
    formats: Names | None = None,
    *,
    leave_out: Collection[str] = (),
    **others,
) -> Section:
    """Return a section whose table has a line for each row.

    Args:
        title: heading of the section.
        rows: may lack values that others have; their cells stay empty.
        formats: format string of each column by its heading, as {"batch": "{batch}", "time":
            "{seconds:.1f} s"}. By default every name whose value is not a list or a dict has a
            column, unless all its values are empty.
        leave_out: names that have no column.
        others: text, picture and so on, see `Section`.
    """
    if formats is None:
        scalars = [
            {name: value for name, value in row.items() if not isinstance(value, list | dict)}
            for row in rows
        ]
        # Columns in the order in which the rows first have a value for them
        filled = (name for row in scalars for name, value in row.items() if value not in (None, ""))
        names = [name for name in dict.fromkeys(filled) if name not in leave_out]
        columns = [heading(name) for name in names]
        cells = [[cell_text(name, row.get(name)) for name in names] for row in scalars]
    else:
        columns = list(formats)
        cells = [[text.format_map(row) for text in formats.values()] for row in rows]
    return Section(title=title, columns=columns, rows=cells, **others)


def heading(name: str) -> str:
    """Return the heading of a column: "peak_bytes" -> "peak GiB"."""
    return name.replace("_", " ").replace("bytes", "GiB")


def cell_text(name: str, value) -> str:
    """Format a value in the unit that its name says."""
    if value is None or isinstance(value, str):
        return value or ""
    # Before numbers: a bool is an int.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("bytes"):
        return f"{value / GIB:.3g}"
    if name in SHARES:
        return f"{value:.0%}"
    if name in DIFFERENCES:
        return f"{value:.1e}"
    if name.endswith("per_second"):
        return f"{value:,.1f}"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 999.5 else f"{value:,.0f}"


def row_chart(title: str, rows: Iterable[Row], x: str, y: str, by: str = "", **axis: Number) -> str:
    """Draw the value `y` of rows over their value `x`.

    Rows with the same value `by` form a line of that name. The vertical axis ends above the largest
    value, unless `axis` has its `bottom` and `top`. Returns an empty string if no row has a `y`.
    """
    lines = {}
    for row in rows:
        if row.get(y) is not None:
            lines.setdefault(row.get(by, heading(y)), []).append((row[x], row[y]))
    if not lines:
        return ""
    top = round_up(max(value for points in lines.values() for _, value in points))
    return line_chart(title, heading(x), heading(y), lines, **({"top": top} | axis))
