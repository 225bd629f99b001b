"""Pages of results: templates whose values are escaped, each one self-contained HTML file."""

from pathlib import Path
from typing import Any

import jinja2


def render(name: str, **values: Any) -> str:
    """A page of this folder; a value that it lacks is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(name).render(**values)
