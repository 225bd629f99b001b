"""A report of several sections, as Markdown and as one self-contained page without scripts.

Turns plain data into text; knows no model and no measurement.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jax_lm.config import Names
from jax_lm.host.files import write_json_whole, write_whole
from jax_lm.reports.charts import write_picture
from jax_lm.reports.rendering import render

# What a criterion is, whether it is met or not or could not be measured: in words, in Markdown, and
# its colour on a terminal.
MARKS = {
    True: ("met", "[x]", "green"),
    False: ("missed", "[ ]", "red"),
    None: ("not measured", "[-]", "dim"),
}


@dataclass(frozen=True)
class Verdict:
    """A criterion, and whether it is met.

    Attributes:
        name: the condition.
        wanted: its bound, in words.
        measured: what was measured, in words.
        met: None if it could not be measured.
    """

    name: str
    wanted: str
    measured: str
    met: bool | None

    @property
    def mark(self) -> str:
        return MARKS[self.met][0]

    @property
    def cells(self) -> list[str]:
        """Cells of a Markdown table: a checkbox, criterion, bound, measurement."""
        return [MARKS[self.met][1], self.name, self.wanted, f"{self.measured} ({self.mark})"]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and its content, in this order.

    Attributes:
        text: one paragraph.
        columns, rows: a table.
        picture: an SVG.
        name: file name of the picture; without one, only the page shows it.
        listing: texts by their titles, shown verbatim: what a model wrote.
    """

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    picture: str = ""
    name: str = ""
    listing: Names = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report.

    Attributes:
        title: its heading.
        metadata: what its numbers depend on, by name.
        verdicts: whether its criteria are met.
        sections: what was measured.
        details: sections that the page shows folded, and Markdown leaves out.
    """

    title: str
    metadata: Names
    verdicts: Sequence[Verdict] = ()
    sections: Sequence[Section]
    details: Sequence[Section] = ()

    @property
    def score(self) -> str:
        """The number of verdicts that are met, missed and not measured, in one line."""
        counts = Counter(verdict.mark for verdict in self.verdicts)
        return (
            f"{counts['met']} of {len(self.verdicts)} met, {counts['missed']} missed, "
            f"{counts['not measured']} not measured"
        )

    def markdown(self) -> str:
        return render("document.md", document=self, table=table).rstrip("\n") + "\n"

    def page(self) -> str:
        """Render one HTML file. Every text in it is escaped; only our own pictures are not."""
        return render("document.html", document=self)

    def write(self, folder: Path, name: str, data=None):
        """Write `name`.md, `name`.html and the pictures, and `name`.json if there are data.

        The folder is created; each file is complete or absent.
        """
        if data is not None:
            write_json_whole(folder / f"{name}.json", data)
        for section in self.sections:
            if section.picture and section.name:
                # The page contains its pictures; Markdown links to files.
                write_picture(folder / f"{section.name}.svg", section.picture)
        write_whole(folder / f"{name}.md", self.markdown())
        write_whole(folder / f"{name}.html", self.page())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""

    def line(cells):
        # A cell is one line, and must not contain the separator: "a\nb|c" -> "a b&#124;c"
        return f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;') for cell in cells)} |"

    return [line(cells) for cells in (columns, ["---"] * len(columns), *rows)]


def facts_table(rows: Iterable[tuple[str, str]], styles: Mapping[str, str] = {}) -> Table:
    """Return a table of names and values; `styles` are those of certain values."""
    grid = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        grid.add_row(name, escape(value), style=styles.get(value))
    return grid


def print_report(document: Document, *, with_sections: bool = False):
    """Print the metadata, the tables if `with_sections`, and the verdicts."""
    console = Console(highlight=False)
    anything = console.options.update(max_width=10_000)
    for name, text in document.metadata.items():
        # Without markup: a value may contain square brackets.
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    for section in document.sections if with_sections else ():
        lines = [section.columns, *section.rows]
        # Words that do not fit would be cut. So a table that is too wide lies on its side:
        # a b, 1 2 -> a 1, b 2
        for headings, *rows in (lines, zip(*lines, strict=True)):
            columns = [Column(escape(name), overflow="fold") for name in headings]
            table = Table(*columns, title=section.title, box=box.SIMPLE_HEAD, padding=0)
            for row in rows:
                table.add_row(*map(escape, row))
            if console.measure(table, options=anything).minimum <= console.width:
                break
        console.print(table)
    if not document.verdicts:
        return
    table = Table("criterion", "wanted", "measured", "", title=document.title)
    for verdict in document.verdicts:
        mark = f"[{MARKS[verdict.met][2]}]{verdict.mark}[/]"
        table.add_row(verdict.name, verdict.wanted, escape(verdict.measured), mark)
    console.print(table)
    console.print(document.score)
