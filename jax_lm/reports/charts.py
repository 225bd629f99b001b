"""Line charts, bar charts and heat maps as SVG, without a library: small enough to be written out.

Colours follow the page that they stand in (`currentColor`), so that they can be read on dark and on light.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jax_lm.reports.pages import render
from jax_lm.reports.run_folder import write_whole

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 36, 46
AREA = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d")
BAR, GAP = 18, 6
TICKS = 5
MANY = 10
"""Up to so many values along the axis have their own number."""

PICTURE_COLOR = "#333"
"""Of text and axes in a picture that stands alone; in a page they have the colour of its text."""

Series = Mapping[str, Sequence[tuple[float | int, float | int]]]


def frame(title: str, x_label: str, y_label: str, parts: Sequence[str], *, height: float | int = HEIGHT) -> str:
    """A picture with its title and the names of its axes."""
    middle, centre = LEFT + (WIDTH - LEFT - RIGHT) / 2, TOP + (height - TOP - BOTTOM) / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="sans-serif" font-size="12" fill="currentColor" role="img" '
            f'aria-label="{html.escape(title)}">',
            f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{html.escape(title)}</text>',
            *parts,
            f'<text x="{middle:.0f}" y="{height - 8}" text-anchor="middle">{html.escape(x_label)}</text>',
            f'<text transform="translate(14 {centre:.0f}) rotate(-90)" text-anchor="middle">'
            f"{html.escape(y_label)}</text>",
            "</svg>",
            "",
        ]
    )


def number(value: float | int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def rounded_up(value: float | int) -> float:
    """Round up to the next of 1, 2, 5, 10, 20, …: where an axis may end."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def line_chart(title: str, x_label: str, y_label: str, series: Series, *, top: float | int = 1.0) -> str:
    """Draw lines over a common axis; the vertical one runs from 0 to `top`. Values that are nan are left out."""
    drawn = {name: [point for point in points if not math.isnan(point[1])] for name, points in series.items()}
    xs = [x for points in drawn.values() for x, _ in points]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    span = float(high - low) or 1.0

    def point_of(x: float | int, y: float | int) -> tuple[float, float]:
        across = LEFT + (x - low) / span * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - float(y) / top * (HEIGHT - TOP - BOTTOM), 1)

    ticks = sorted(set(xs)) if len(set(xs)) <= MANY else np.linspace(low, high, TICKS + 1).round().tolist()
    return render(
        "line_chart.svg",
        area=AREA,
        title=title,
        x_label=x_label,
        y_label=y_label,
        marks=[(point_of(low, mark), number(mark)) for mark in np.linspace(0, top, TICKS + 1).tolist()],
        ticks=[(point_of(x, 0), number(x)) for x in ticks],
        lines=[
            (name, COLORS[index % len(COLORS)], [point_of(*point) for point in points])
            for index, (name, points) in enumerate(drawn.items())
        ],
    )


def heat_chart(title: str, x_label: str, y_label: str, values: Float[np.ndarray, "rows columns"], length: int) -> str:
    """Draw rows from top to bottom; the darker a cell, the larger its value, of the largest in the picture."""
    rows, columns = values.shape
    width, height = (WIDTH - LEFT - RIGHT) / columns, (HEIGHT - TOP - BOTTOM) / rows
    largest = float(values.max()) or 1.0
    parts = [
        f'<rect x="{LEFT + column * width:.1f}" y="{TOP + row * height:.1f}" width="{width:.2f}" '
        f'height="{height:.2f}" fill="{COLORS[0]}" fill-opacity="{values[row, column] / largest:.3f}"/>'
        for row in range(rows)
        for column in range(columns)
        if values[row, column] > 0
    ]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts += [
        f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" '
        'stroke="currentColor" stroke-opacity=".3"/>',
        f'<text x="{LEFT}" y="{bottom + 16}">0</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{length - 1}</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">0</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">{length - 1}</text>',
    ]
    return frame(title, x_label, y_label, parts)


def bar_chart(title: str, bars: Sequence[tuple[str, str, float | int]]) -> str:
    """Draw a bar per (label, group, value), one below the other; each group has a colour."""
    groups = list(dict.fromkeys(group for _, group, _ in bars))
    left, right = 4 * LEFT, LEFT
    largest = max((value for *_, value in bars), default=0) or 1
    parts = []
    for index, (label, group, value) in enumerate(bars):
        y, length = TOP + index * (BAR + GAP), value / largest * (WIDTH - left - right)
        color = COLORS[groups.index(group) % len(COLORS)]
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>',
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>',
            f'<text x="{left + length + 6:.1f}" y="{y + 13}">{number(value)}</text>',
        ]
    return frame(title, "", "", parts, height=TOP + len(bars) * (BAR + GAP) + GAP)
