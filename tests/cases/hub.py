"""A hub on the loopback address: as much of its interface as the official client needs to write and
to read a model.
"""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

TOKEN = "hf_of_the_test_only"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: `repos[name]` has `private` and `files`; one commit, one branch.

    Attributes:
        seen: every request as (method, path, headers), names of headers in lower case.
        broken: how many downloads of weights end after half of their bytes.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos, self.stored, self.seen, self.broken = {}, {}, [], 0
        self.commit = "a" * 40

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status=200, content=b"", **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {"Content-Length": len(content), "X-Repo-Commit": self.server.commit} | headers
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def handle_any(self):
        hub, path = self.server, unquote(self.path.split("?")[0]).strip("/")
        hub.seen.append(
            (self.command, path, {name.lower(): value for name, value in self.headers.items()})
        )
        content = self.body()
        if self.command == "PUT":  # signed addresses need no token
            hub.stored[path.rsplit("/", 1)[1]] = content
            return self.answer()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid credentials"})
        getattr(self, f"{self.command.lower()}_path")(path.split("/"), content)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815

    def post_path(self, parts, content):
        hub, fields = self.server, {}
        if content[:1] == b"{" and b"\n" not in content.strip():
            fields = json.loads(content)
        match parts:
            case ["api", "repos", "create"]:
                name = f"{fields['organization']}/{fields['name']}"
                hub.repos.setdefault(
                    name, {"private": fields.get("visibility", fields.get("private")), "files": {}}
                )
                self.answer(content={"url": f"{hub.address}/{name}"})
            case ["api", "validate-yaml"]:
                self.answer(content={"warnings": [], "errors": []})
            case ["api", "models", owner, name, "preupload", _]:
                kinds = [
                    {"path": f["path"], "uploadMode": kind(f["path"]), "shouldIgnore": False}
                    for f in fields["files"]
                ]
                self.answer(content={"files": kinds})
            case [owner, name, "info", "lfs", "objects", "batch"]:
                upload = {"upload": {"href": f"{hub.address}/lfs/OID"}}
                objects = [
                    one | {"actions": json.loads(json.dumps(upload).replace("OID", one["oid"]))}
                    for one in fields["objects"]
                ]
                self.answer(
                    content={"transfer": "basic", "objects": objects},
                    Content_Type="application/json",
                )
            case ["api", "models", owner, name, "commit", _]:
                for line in map(json.loads, content.splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        hub.repos[f"{owner}/{name}"]["files"][value["path"]] = base64.b64decode(
                            value["content"]
                        )
                    elif line["key"] == "lfsFile":
                        hub.repos[f"{owner}/{name}"]["files"][value["path"]] = hub.stored[
                            value["oid"]
                        ]
                url = f"{hub.address}/{owner}/{name}/commit/{hub.commit}"
                self.answer(
                    content={"commitUrl": url, "commitOid": hub.commit, "pullRequestUrl": None}
                )
            case _:
                self.answer(404, {"error": f"no {'/'.join(parts)}"})

    def get_path(self, parts, _):
        match parts:
            case ["api", "models", owner, name, "revision", revision] if revision in (
                "main",
                self.server.commit,
            ):
                files = self.server.repos[f"{owner}/{name}"]["files"]
                siblings = [{"rfilename": file} for file in files]
                self.answer(
                    content={
                        "id": f"{owner}/{name}",
                        "sha": self.server.commit,
                        "siblings": siblings,
                    }
                )
            case ["api", "models", owner, name, "tree", *_]:
                files = self.server.repos[f"{owner}/{name}"]["files"]
                self.answer(
                    content=[
                        {"type": "file", "path": p, "size": len(c), "oid": "0"}
                        for p, c in files.items()
                    ]
                )
            case [owner, name, "resolve", _, file] if (
                file in self.server.repos[f"{owner}/{name}"]["files"]
            ):
                self.send_file(file, self.server.repos[f"{owner}/{name}"]["files"][file])
            case _:
                self.answer(404, {"error": "no such revision"}, X_Error_Code="RevisionNotFound")

    head_path = get_path

    def send_file(self, file, content):
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        part, status = content[start:], 206 if start else 200
        if self.command == "GET" and kind(file) == "lfs" and self.server.broken:
            self.server.broken -= 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        ranges = (
            {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        )
        self.answer(status, part, ETag=etag, **ranges)


def kind(path):
    return "lfs" if path.endswith(".safetensors") else "regular"


@contextmanager
def serving():
    """A hub, until the block ends."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
