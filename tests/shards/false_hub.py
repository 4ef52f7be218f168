"""A false Hugging Face hub on loopback: data sets with commits, LFS uploads and listings, as far as huggingface_hub asks
for them. Only what a client that has the token sends is taken."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_false"
LARGE = 2000  # bytes from which on a file goes by LFS, but for text


def environment(address: str) -> dict[str, str]:
    told = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0"}
    return told | {"HF_ENDPOINT": address, "HF_TOKEN": TOKEN}


class Hub(ThreadingHTTPServer):
    """`commits` are those of all data sets in order: the paths of each. `refuse` answers the next requests of a path that
    has these words with 503."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.sets: dict[str, dict[str, dict[str, bytes]]] = {}  # by name and branch: contents by path
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}  # of LFS
        self.commits: list[list[str]] = []
        self.refuse: list[tuple[str, int]] = []
        self.log: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, repo: str, files: dict[str, bytes]) -> None:
        self.sets[repo] = {"main": dict(files)}

    def handle_error(self, request: Any, client_address: Any) -> None: ...


@contextlib.contextmanager
def false_hub() -> Iterator[Hub]:
    hub = Hub()
    threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def by_lfs(path: str, size: int) -> bool:
    return size >= LARGE and not path.endswith((".md", ".json"))


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Hub

    def handle_any(self) -> None:
        hub, url = self.server, urlsplit(self.path)
        path = unquote(url.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.command != "GET" else b""
        hub.log.append(f"{self.command} {path}")
        if self.command == "PUT" and self.headers.get("Transfer-Encoding") == "chunked":
            body = self.chunked()
        for number, (words, status) in enumerate(hub.refuse):
            if words in path:
                del hub.refuse[number]
                return self.answer({"error": "as the test wants it"}, status)
        if not path.startswith("/lfs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "no token"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in hub.sets:
                return self.answer({"error": "it is there", "url": f"{hub.address}/datasets/{name}"}, 409)
            hub.add(name, {})
            hub.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return self.answer({"url": f"{hub.address}/datasets/{name}", "name": name})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path.startswith("/lfs/"):
            name = path.removeprefix("/lfs/")
            if hashlib.sha256(body).hexdigest() != name:
                return self.answer({"error": "another file"}, 400)
            hub.objects[name] = body
            return self.answer({})
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            asked = json.loads(body)["objects"]
            return self.answer({"transfer": "basic", "objects": [self.upload(one) for one in asked]})
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path):
            return self.content(*match.groups())
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.*))?)?)?", path):
            return self.api(match[1], match[2] or "", match[3] or "main", match[4] or "", body, parse_qs(url.query))
        self.answer({"error": f"{path}: nothing is known of it"}, 404)

    do_GET = do_POST = do_PUT = do_HEAD = handle_any

    def upload(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["oid"] in self.server.objects:
            return one
        return one | {"actions": {"upload": {"href": f"{self.server.address}/lfs/{one['oid']}"}}}

    def chunked(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def api(self, repo: str, what: str, revision: str, below: str, body: bytes, query: dict[str, list[str]]) -> None:
        hub = self.server
        branches = hub.sets.get(repo)
        if branches is None:
            return self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if what == "branch":
            branches.setdefault(revision, dict(branches["main"]))
            return self.answer({})
        files = branches.get(revision)
        if files is None:
            return self.answer({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        if what in ("", "revision"):
            sha = hashlib.sha1(repr(sorted(files)).encode()).hexdigest()
            return self.answer(
                {"id": repo, "sha": sha, "private": hub.private.get(repo, False), "tags": [], "siblings": []}
            )
        if what == "tree":
            deep = query.get("recursive", ["false"])[0].lower() == "true"
            return self.answer(self.tree(files, below, deep))
        if what == "paths-info":
            text = body.decode()
            asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
            asked = [asked] if isinstance(asked, str) else asked
            known = [entry_of(path, files[path]) for path in asked if path in files]
            known += [
                {"type": "directory", "path": path, "oid": "0" * 40}
                for path in asked
                if path not in files and any(f.startswith(f"{path}/") for f in files)
            ]
            return self.answer(known)
        if what == "preupload":
            given = json.loads(body)["files"]
            return self.answer(
                {
                    "files": [
                        {
                            "path": one["path"],
                            "uploadMode": "lfs" if by_lfs(one["path"], one["size"]) else "regular",
                            "shouldIgnore": False,
                            "oid": None,
                        }
                        for one in given
                    ]
                }
            )
        if what == "commit":
            return self.commit(repo, files, body)
        self.answer({"error": f"nothing is known of {what}"}, 404)

    def tree(self, files: dict[str, bytes], below: str, deep: bool) -> list[dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = {}
        for path, data in sorted(files.items()):
            if below and not path.startswith(f"{below}/"):
                continue
            steps = path[len(below) + 1 if below else 0 :].split("/")
            for depth in range(1, len(steps) if deep else min(2, len(steps))):
                folder = "/".join([*([below] if below else []), *steps[:depth]])
                entries.setdefault(folder, {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0})
            if deep or len(steps) == 1:
                entries[path] = entry_of(path, data)
        return list(entries.values())

    def commit(self, repo: str, files: dict[str, bytes], body: bytes) -> None:
        paths = []
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            if line["key"] != "header":
                paths.append(value["path"])
        self.server.commits.append(paths)
        number = f"{len(self.server.commits):040x}"
        self.answer(
            {
                "success": True,
                "commitOid": number,
                "commitUrl": f"{self.server.address}/datasets/{repo}/commit/{number}",
            }
        )

    def content(self, repo: str, revision: str, path: str) -> None:
        data = self.server.sets.get(repo, {}).get(revision, {}).get(path)
        if data is None:
            return self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = data[int(match[1]) : int(match[2]) + 1] if match else data
        headers = {"ETag": f'"{git_hash(data)}"', "X-Repo-Commit": "0" * 40, "Content-Length": str(len(part))}
        if match:
            headers["Content-Range"] = f"bytes {match[1]}-{int(match[1]) + len(part) - 1}/{len(data)}"
        self.send(206 if match else 200, headers, part)

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send(
            status, {"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {}), data
        )

    def send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


def entry_of(path: str, data: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
    if by_lfs(path, len(data)):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry
