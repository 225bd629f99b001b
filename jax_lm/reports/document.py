"""A report of several sections, as Markdown and as one self-contained page without scripts.

Plain data in, text out: knows no model and no measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jax_lm.reports.charts import render, write_picture
from jax_lm.reports.run_folder import write_whole


@dataclass(frozen=True)
class Verdict:
    """A criterion, and whether it is met; `met` is None where it could not be measured."""

    name: str
    wanted: str
    measured: str
    met: bool | None

    @property
    def mark(self) -> str:
        return {True: "met", False: "missed", None: "not measured"}[self.met]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One heading and what stands below it, in this order.

    Attributes:
        text: one paragraph.
        columns, rows: a table.
        picture: an SVG.
        name: of the picture's file; without one, the picture stands in the page alone.
        listing: texts by what they are, shown as they are: what a model wrote.
        points: a list.
    """

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    picture: str = ""
    name: str = ""
    listing: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[str] = ()

    def markdown(self) -> list[str]:
        lines = [f"## {self.title}", ""]
        lines += [self.text, ""] if self.text else []
        lines += [*table(self.columns, self.rows), ""] if self.rows else []
        lines += [f"![{self.title}]({self.name}.svg)", ""] if self.picture and self.name else []
        for what, text in self.listing.items():
            lines += [f"{what}:", "", *(f"    {line}" for line in text.splitlines()), ""]
        lines += [*(f"- {point}" for point in self.points), ""] if self.points else []
        return lines


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report.

    Attributes:
        title: its heading.
        metadata: what its numbers depend on, by name.
        verdicts: whether its criteria are met.
        sections: what was measured.
        details: what the page shows when it is opened, and Markdown leaves out.
    """

    title: str
    metadata: Mapping[str, str]
    verdicts: Sequence[Verdict] = ()
    sections: Sequence[Section]
    details: Sequence[Section] = ()

    @property
    def score(self) -> str:
        """Count of verdicts met, missed and not measured, in one line."""
        counts = {mark: sum(verdict.mark == mark for verdict in self.verdicts) for mark in ("met", "missed")}
        unknown = len(self.verdicts) - sum(counts.values())
        return f"{counts['met']} of {len(self.verdicts)} met, {counts['missed']} missed, {unknown} not measured"

    def markdown(self) -> str:
        boxes = {True: "[x]", False: "[ ]", None: "[-]"}
        rows = [[boxes[v.met], v.name, v.wanted, f"{v.measured} ({v.mark})"] for v in self.verdicts]
        lines = [f"# {self.title}", "", *(f"- {name}: {text}" for name, text in self.metadata.items()), ""]
        if rows:
            criteria = table(("", "criterion", "wanted", "measured"), rows)
            lines += ["## Success criteria", "", self.score, "", *criteria, ""]
        return "\n".join([*lines, *(line for section in self.sections for line in section.markdown())])

    def page(self) -> str:
        """Render one HTML file; every text in it is escaped, pictures are drawn by us."""
        return render("document.html", document=self)

    def write(self, folder: Path, name: str) -> None:
        """Write `name`.md, `name`.html and the pictures, each whole or not at all."""
        for section in self.sections:
            if section.picture and section.name:
                write_picture(folder / f"{section.name}.svg", section.picture)
        write_whole(folder / f"{name}.md", self.markdown())
        write_whole(folder / f"{name}.html", self.page())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a Markdown table, line by line."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;') for cell in cells)} |"

    return [line(cells) for cells in (columns, ["---"] * len(columns), *rows)]


def print_report(document: Document, *, with_sections: bool = False) -> None:
    """Print what a report depends on, and its verdicts or its tables."""
    console = Console(highlight=False)
    for name, text in document.metadata.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    for section in document.sections if with_sections else ():
        columns = [Column(name, overflow="fold") for name in section.columns]
        table = Table(*columns, title=section.title, box=box.SIMPLE_HEAD, padding=0)
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    if not document.verdicts:
        return
    table = Table("criterion", "wanted", "measured", "", title=document.title)
    colors = {True: "green", False: "red", None: "dim"}
    for verdict in document.verdicts:
        mark = f"[{colors[verdict.met]}]{verdict.mark}[/]"
        table.add_row(verdict.name, verdict.wanted, escape(verdict.measured), mark)
    console.print(table)
    console.print(document.score)
