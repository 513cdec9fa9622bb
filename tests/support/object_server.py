"""A server on loopback that speaks as much of S3 as transfers need, and fails as told.

with ObjectServer() as server:
    server.objects["bucket/folder/file"] = Stored(b"content")
    server.faults.append(Fault("GET", "file", "cut", times=2))

Multipart uploads, ranges, If-Match, If-None-Match and metadata are kept to; signatures are not checked.
"""

import hashlib
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from loopback import LoopbackHandler, LoopbackServer

PAGE = 100  # keys of a listing


@dataclass
class Stored:
    """An object and what was said about it."""

    content: bytes
    metadata: dict[str, str] = field(default_factory=dict)
    modified: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


@dataclass
class Fault:
    """What goes wrong with requests of a method whose path contains some text, so many times.

    `how`: "drop" closes the connection without an answer, "cut" in the middle of the body, "busy" answers 503, "forge"
    answers with other bytes, "forbid" with 403.
    """

    method: str
    path: str
    how: str
    times: int = 10**9


class ObjectServer(LoopbackServer):
    """See the top of this file."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()  # requests by method
        self.forbidden_after: int | None = None  # PUTs beyond so many are refused
        self.log: list[str] = []  # method and path of each request, in order
        self.ranges: list[str] = []
        self.uploads: dict[str, dict[int, bytes]] = {}  # multipart uploads that are not complete, and their metadata
        self.metadata: dict[str, dict[str, str]] = {}
        self.lock = threading.Lock()
        super().__init__(_Handler)

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "anna",
            "AWS_SECRET_ACCESS_KEY": "sesame",
            "AWS_REGION": "us-east-1",
        }

    def names(self, prefix: str) -> list[str]:
        """The keys below a prefix, without it."""
        return sorted(key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))


class _Handler(LoopbackHandler):
    owner: ObjectServer

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # of a client that went away
            self.close_connection = True

    def do_GET(self) -> None:  # noqa: N802  # the name that BaseHTTPRequestHandler calls
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        body = self._body()
        parts = urlsplit(self.path)
        key, query = (
            unquote(parts.path)[1:],
            {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()},
        )
        with self.owner.lock:
            self.owner.seen[self.command] += 1
            self.owner.log.append(f"{self.command} {key}")
            self.owner.ranges += [asked] if (asked := self.headers.get("Range")) else []
            fault = next(
                (f for f in self.owner.faults if f.times and f.method == self.command and f.path in unquote(self.path)),
                None,
            )
            if fault is not None:
                fault.times -= 1
            most = self.owner.forbidden_after
            if self.command == "PUT" and most is not None and self.owner.seen["PUT"] > most:
                fault = Fault("PUT", "", "forbid")
        if fault is not None and fault.how == "drop":
            self.close_connection = True
            return
        if fault is not None and fault.how in ("busy", "forbid"):
            code = {"busy": (503, "SlowDown"), "forbid": (403, "AccessDenied")}[fault.how]
            self._answer(code[0], f"<Error><Code>{code[1]}</Code><Message>told to</Message></Error>".encode())
            return
        with self.owner.lock:
            answer = getattr(self, f"_{self.command.lower()}")(key, query, body)
        status, content, headers = answer
        self._answer(status, content, headers, how=fault.how if fault else "")

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            blocks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                blocks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(blocks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _get(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if "list-type" in query:
            return 200, self._listing(key.strip("/"), query), {}
        found = self.owner.objects.get(key)
        if found is None:
            return 404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", {}
        if self.headers.get("If-Match") not in (None, found.etag):
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        modified = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(found.modified))
        headers = {"ETag": found.etag, "Last-Modified": modified, **found.metadata}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(match[1]), min(int(match[2] or 1 << 60), len(found.content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(found.content)}"
            return 206, found.content[first : last + 1], headers
        return 200, found.content, headers

    _head = _get

    def _put(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if "uploadId" in query:
            self.owner.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        if self.headers.get("If-None-Match") == "*" and key in self.owner.objects:
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        self.owner.objects[key] = stored = Stored(body, self._metadata())
        return 200, b"", {"ETag": stored.etag}

    def _post(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if "delete" in query:
            names = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for name in names:
                self.owner.objects.pop(f"{key.strip('/')}/{name}", None)
            told = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            return 200, f"<DeleteResult>{told}</DeleteResult>".encode(), {}
        if "uploads" in query:
            upload = f"{key}#{len(self.owner.uploads)}"
            self.owner.uploads[upload] = {}
            self.owner.metadata[upload] = self._metadata()
            told = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return 200, told.encode(), {}
        parts = self.owner.uploads.pop(query["uploadId"])
        content = b"".join(parts[number] for number in sorted(parts))
        self.owner.objects[key] = stored = Stored(content, self.owner.metadata.pop(query["uploadId"]))
        told = f"<CompleteMultipartUploadResult><ETag>{stored.etag}</ETag></CompleteMultipartUploadResult>"
        return 200, told.encode(), {}

    def _delete(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        self.owner.objects.pop(key, None)
        return 204, b"", {}

    def _metadata(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}

    def _listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, after = f"{bucket}/{query.get('prefix', '')}", query.get("continuation-token", "")
        keys = [key for key in sorted(self.owner.objects) if key.startswith(prefix) and key > after]
        page, more = keys[:PAGE], len(keys) > PAGE
        items = "".join(
            f"<Contents><Key>{escape(key[len(bucket) + 1 :])}</Key><Size>{len(found.content)}</Size>"
            f"<ETag>{escape(found.etag)}</ETag><LastModified>{_iso(found.modified)}</LastModified></Contents>"
            for key in page
            for found in [self.owner.objects[key]]
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}"
            "</ListBucketResult>"
        ).encode()

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None, how: str = "") -> None:
        if how == "forge":
            content = bytes(byte ^ 1 for byte in content)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(content[: len(content) // 2] if how == "cut" else content)
        if how == "cut":
            self.close_connection = True


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
