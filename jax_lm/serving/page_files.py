"""The files of the page that shows the denoising, and the paths under which they are served."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

# Files of the package; nothing else can be requested.
PAGE = Path(__file__).parent / "page"
SCRIPTS = ("page.js", "canvas.js", "python.js", "replay.js")
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the files, which are read once."""
    for path, (name, kind) in PAGE_FILES.items():
        app.get(path, include_in_schema=False)(endpoint((PAGE / name).read_bytes(), kind))


def endpoint(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return send
