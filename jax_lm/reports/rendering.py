"""Render the templates of `pages`: reports, pages and pictures.

All templates except those of Markdown escape their values. Each page is one self-contained HTML
file.
"""

from pathlib import Path

import jinja2

PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
    autoescape=lambda name: name is None or not name.endswith(".md"),
    undefined=jinja2.StrictUndefined,
)


def render(name: str, **values) -> str:
    """Render a template of `pages`. Raises an error if a value is missing."""
    return PAGES.get_template(name).render(**values)
