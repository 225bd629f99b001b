"""The files of the page, each under its path."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from jax_lm.serving.guard import SCRIPTS

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{path: (path[1:], "text/javascript; charset=utf-8") for path in SCRIPTS},
}


def add_page(app: FastAPI) -> None:
    """Answer the paths of the page with its files, read once."""
    for path, (name, kind) in PAGE_FILES.items():
        app.get(path, include_in_schema=False)(page_file((PAGE / name).read_bytes(), kind))


def page_file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return send
