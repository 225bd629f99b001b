"""A report says the same as Markdown and as a page, and shows what a model wrote as text."""

from dataclasses import replace

import pytest

from jax_lm.reports.charts import line_chart
from jax_lm.reports.document import Document, Section, Verdict, print_report, table

ATTACK = "<script>alert(1)</script>"
VERDICTS = [
    Verdict("loads", "within 300 s", "2 s", True),
    Verdict("fast", "10 tokens/s", "3 tokens/s", False),
    Verdict("parity", "95 %", "left out: no torch", None),
]


@pytest.fixture
def document():
    sections = [
        Section(title="Speed", text="Medians.", columns=("batch", "ms"), rows=[["1", "2.5"], ["2", "a|b"]],
                picture=line_chart("Speed", "batch", "ms", {"one": [(1, 2.5)]}, top=5), name="speed"),
        Section(title="Texts", listing={"Completion": f"{ATTACK}\n```\nrest"}),
    ]  # fmt: skip
    return Document(
        title="Experiment", metadata={"device": ATTACK}, verdicts=VERDICTS, sections=sections
    )


def test_markdown(document):
    text = document.markdown()
    assert "1 of 3 met, 1 missed, 1 not measured" in text
    assert "| [x] | loads | within 300 s | 2 s (met) |" in text
    assert "| [ ] | fast | 10 tokens/s | 3 tokens/s (missed) |" in text
    assert "| [-] | parity | 95 % | left out: no torch (not measured) |" in text
    assert "| 2 | a&#124;b |" in text
    assert "![Speed](speed.svg)" in text
    assert "    ```\n    rest" in text


def test_page_is_one_file_without_scripts(document):
    page = document.page()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 2
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert page.count("<svg") == 1
    assert [page.count(mark) for mark in ("✔", "✘", "\u2013")] == [1, 1, 1]


def test_without_criteria_there_is_none(document):
    plain = replace(document, verdicts=[])
    assert "criteria" not in plain.markdown() + plain.page()


def test_details_are_in_the_page_alone(document):
    picture = line_chart("Once", "x", "y", {"one": [(1, 0.5)]})
    details = [Section(title=ATTACK, listing={"Prompt": ATTACK}, picture=picture)]
    detailed = replace(document, details=details)
    assert detailed.markdown() == document.markdown()
    page = detailed.page()
    assert "<script" not in page
    assert [page.count(text) for text in ("<details>", "<svg", "&lt;script&gt;")] == [1, 2, 4]


def test_a_picture_without_a_name_is_in_the_page_alone(document, tmp_path):
    nameless = replace(document, sections=[replace(document.sections[0], name="")])
    assert "svg" not in nameless.markdown()
    assert nameless.page().count("<svg") == 1
    nameless.write(tmp_path, "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md"]


def test_files(document, tmp_path):
    document.write(tmp_path, "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.html",
        "report.md",
        "speed.svg",
    ]
    assert "currentColor" not in (tmp_path / "speed.svg").read_text()


def test_a_cell_stays_in_its_line():
    assert table(("a",), [["one\ntwo"]]) == ["| a |", "| --- |", "| one two |"]


@pytest.mark.parametrize("columns", [80, 300])
def test_no_word_of_a_table_is_cut(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    headings = ["preset", *(f"recompilations_{number}" for number in range(8))]
    rows = [["exact", *["1,089.2"] * 8], ["[fast]", *["0.0437"] * 8]]
    section = Section(title="Generation", columns=headings, rows=rows)
    print_report(Document(title="x", metadata={}, sections=[section]), with_sections=True)
    words = capsys.readouterr().out.split()
    assert {*headings, *rows[0], *rows[1]} <= {*words}
