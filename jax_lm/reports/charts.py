"""Draw line charts, bar charts and heat maps as SVG.

The functions compute coordinates, and templates in `pages` draw them. Pictures take their colour
from the page (`currentColor`), so that they are readable on dark and light backgrounds.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, isnan, log10
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jax_lm.host.files import write_whole
from jax_lm.reports.rendering import PAGES, render

# Size of a picture and its margins around the drawing area, in pixels. The right one holds the
# legend.
WIDTH = 640
HEIGHT = 340
LEFT = 60
RIGHT = 150
TOP = 36
BOTTOM = 46
AREA = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": RIGHT,
    "top": TOP,
    "bottom": BOTTOM,
}
COLORS = """
    #4c78a8 #f58518 #54a24b #e45756 #72b7b2 #b279a2 #9d755d #eeca3b #ff9da6 #bab0ac
""".split()  # noqa: SIM905 (a table, not a list)
# Height of a bar and of the gap below it, in pixels.
BAR = 18
GAP = 6
# Number of intervals of an axis.
INTERVALS = 5
# Up to this number of values on the horizontal axis, each one has a label.
MAX_LABELS = 10
PAGES.globals.update(area=AREA, x_label="", y_label="")

# Colour of text and axes in a picture without a page.
PICTURE_COLOR = "#333"

# A measured value or a count.
Number = float | int
# The points (x, y) of each line by its name. A y of None is a missing value.
Series = Mapping[str, Sequence[tuple[Number, Number | None]]]


def format_number(value: Number) -> str:
    """Format a number for a label: 0.1234 -> 0.123, 12345 -> 12,345."""
    # 999.6 has no three digits: it is written as 1,000, not as 1e+03
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def round_up(value: Number) -> float:
    """Round up to the next of 1, 2, 5, 10, 20, …, at which an axis may end: 37 -> 50, 0 -> 1."""
    # The tolerance keeps a rounding error from raising 5.000000000000001 to 10.
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def round_ticks(low: Number, high: Number) -> list[float]:
    """Return the multiples of a round step in an interval: 0 to 37 -> 0, 10, 20, 30."""
    step = round_up((high - low) / INTERVALS)
    # 0.6 / 0.2 is 2.9999999999999996
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [step * count for count in range(first, last + 1)]


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Series,
    *,
    bottom: Number = 0.0,
    top: Number = 1.0,
) -> str:
    """Draw lines on common axes.

    The vertical axis runs from `bottom` to `top`, both values of y; larger ones are not
    cut. Points whose y is NaN or None are left out.
    """
    lines = {
        name: [(x, y) for x, y in points if y is not None and not isnan(y)]
        for name, points in series.items()
    }
    xs = {x for points in lines.values() for x, _ in points}
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    # with a single x, any span
    span = float(high - low) or 1.0

    def point_of(x, y):
        # A larger y is further up, while SVG counts pixels from the top down.
        across = LEFT + (x - low) / span * (WIDTH - LEFT - RIGHT)
        share = (float(y) - bottom) / (top - bottom)
        return round(across, 1), round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    x_ticks = sorted(xs) if len(xs) <= MAX_LABELS else round_ticks(low, high)
    return render(
        "line_chart.svg",
        title=title,
        x_label=x_label,
        y_label=y_label,
        x_ticks=[(point_of(x, bottom), format_number(x)) for x in x_ticks],
        y_ticks=[
            (point_of(low, y), format_number(y))
            for y in np.linspace(bottom, top, INTERVALS + 1).tolist()
        ],
        lines=[
            (name, COLORS[index % len(COLORS)], [point_of(*point) for point in points])
            for index, (name, points) in enumerate(lines.items())
        ],
    )


def heat_chart(title: str, values: Float[np.ndarray, "steps positions"], length: int) -> str:
    """Draw a heat map: rows are steps from top to bottom, columns are positions.

    The larger a value relative to the largest one, the darker its cell.

    Args:
        title: title of the picture.
        values: at least 0.
        length: number of positions and of steps, for the labels at the ends of the axes.
    """
    rows, columns = values.shape
    width = (WIDTH - LEFT - RIGHT) / columns
    height = (HEIGHT - TOP - BOTTOM) / rows
    shares = values / (float(values.max()) or 1.0)
    return render(
        "heat_chart.svg",
        title=title,
        x_label="position",
        y_label="step",
        width=width,
        height=height,
        color=COLORS[0],
        cells=[
            (LEFT + j * width, TOP + i * height, shares[i, j]) for i, j in np.argwhere(values > 0)
        ],
        last=length - 1,
    )


def bar_chart(title: str, bars: Sequence[tuple[str, str, Number]]) -> str:
    """Draw one bar per (label, group, value), from top to bottom; each group has a colour."""
    groups = list(dict.fromkeys(group for _, group, _ in bars))
    # Labels stand to the left of the bars and need more room than those of an axis.
    left = 4 * LEFT
    scale = (WIDTH - left - LEFT) / (max((value for *_, value in bars), default=0) or 1)
    return render(
        "bar_chart.svg",
        area=AREA | {"height": TOP + len(bars) * (BAR + GAP) + GAP},
        title=title,
        left=left,
        bar=BAR,
        gap=GAP,
        bars=[
            (label, format_number(value), value * scale, COLORS[groups.index(group) % len(COLORS)])
            for label, group, value in bars
        ],
    )


def write_picture(path: Path, picture: str):
    """Write an SVG that needs no page. The file is complete or absent."""
    write_whole(path, picture.replace("currentColor", PICTURE_COLOR))
