"""A hub of models on loopback: revisions, trees and files of repositories, as huggingface_hub asks for them.

with HubServer() as server:
    server.repositories["anna/asr"] = {"main": {"manifest.json": b"..."}}
"""

import hashlib
import json
import re
from collections import Counter
from urllib.parse import unquote, urlsplit

from loopback import LoopbackHandler, LoopbackServer

Files = dict[str, bytes]


def commit_of(files: Files) -> str:
    """The commit that a revision with these files has."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class HubServer(LoopbackServer):
    """See the top of this file. Files above `lfs_bytes` are of LFS, which have a sha256."""

    def __init__(self, lfs_bytes: int = 1000) -> None:
        self.repositories: dict[str, dict[str, Files]] = {}  # revisions by repository
        self.forged: dict[str, bytes] = {}  # what is sent in place of the content of a file
        self.cut: Counter[str] = Counter()  # how often the body of a file ends in its middle
        self.lfs_bytes = lfs_bytes
        self.seen: Counter[str] = Counter()  # requests by method
        self.tokens: set[str] = set()
        self.gated: set[str] = set()  # repositories for which one has to ask
        super().__init__(_Handler)

    def find(self, repository: str, revision: str) -> tuple[str, Files] | None:
        """The commit and the files of a revision, by its name or its commit."""
        for name, files in self.repositories.get(repository, {}).items():
            if revision in (name, commit_of(files)):
                return commit_of(files), files
        return None


class _Handler(LoopbackHandler):
    owner: HubServer

    def do_GET(self) -> None:  # noqa: N802  # the name that BaseHTTPRequestHandler calls
        self.owner.seen[self.command] += 1
        if token := self.headers.get("Authorization"):
            self.owner.tokens.add(token.removeprefix("Bearer "))
        path = unquote(urlsplit(self.path).path)
        if any(f"/{name}/" in path for name in self.owner.gated):
            return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path):
            found = self.owner.find(*match.groups())
            return self._missing() if found is None else self._json({"id": match[1], "sha": found[0], "siblings": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path):
            found = self.owner.find(match[1], match[2])
            if found is None:
                return self._missing()
            folder = f"{match[3]}/" if match[3] else ""
            return self._json([self._entry(*each) for each in found[1].items() if each[0].startswith(folder)])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            found = self.owner.find(match[1], match[2])
            if found is None or match[3] not in found[1]:
                return self._missing()
            return self._file(match[3], found[1][match[3]], found[0])
        return self._missing()

    do_HEAD = do_GET  # noqa: N815

    def _entry(self, name: str, content: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": blob}
        if len(content) > self.owner.lfs_bytes:
            oid = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
        return entry

    def _file(self, name: str, content: bytes, commit: str) -> None:
        etag = hashlib.sha256(content).hexdigest()
        content = self.owner.forged.get(name, content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        status, begin = 200, 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            status, begin = 206, int(match[1])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        cut = self.command == "GET" and self.owner.cut[name] > 0
        if cut:
            self.owner.cut[name] -= 1
        self._answer(status, content[begin:], headers, cut=cut)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self) -> None:
        self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _answer(self, status: int, content: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True
