"""The files of the page that shows the denoising, and the paths under which they are served."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response

# Files of the package; nothing else can be requested.
PAGE = Path(__file__).parent / "page"
PAGE_FILES = {"/": PAGE / "index.html"} | {f"/{file.name}": file for file in PAGE.iterdir()}


def add_page(app: FastAPI):
    """Add the routes of the files."""
    for path, file in PAGE_FILES.items():
        app.get(path, include_in_schema=False)(endpoint(file))


def endpoint(file: Path) -> Callable[[], Awaitable[Response]]:
    async def send():
        return FileResponse(file, headers={"cache-control": "no-cache"})

    return send
