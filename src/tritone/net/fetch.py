"""One request by HTTP for those who may wait: what a server's port answers, or an issuer's page.

fetch("http://127.0.0.1:8002/metrics", timeout_s=5.0)   ->  HttpAnswer
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping

from tritone.net.http_client import HttpAnswer

# A proxy named in the environment is for the web, not for a server on this network.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(
    url: str,
    *,
    timeout_s: float,
    method: str = "GET",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    in_web: bool = False,
) -> HttpAnswer:
    """Ask once; returns the answer, whatever its status.

    Args:
        timeout_s: of each wait, in seconds.
        body: JSON, if there is one.
        max_bytes: of the answer's body; None sets no limit.
        in_web: whether to go through the proxy that the environment names.

    Raises:
        OSError: nobody answers, or what came is no HTTP.
        ValueError: the URL is none, or the answer is too large.
    """
    all_headers = {"Content-Type": "application/json", **(headers or {})} if body else dict(headers or {})
    request = urllib.request.Request(url, body or None, all_headers, method=method)
    try:
        with (urllib.request.urlopen if in_web else DIRECT.open)(request, timeout=timeout_s) as answer:
            return _read(answer, max_bytes)
    except urllib.error.HTTPError as answer:
        with answer:
            return _read(answer, max_bytes)
    except urllib.error.URLError as error:
        raise (error.reason if isinstance(error.reason, OSError) else OSError(error.reason)) from error
    except http.client.InvalidURL as error:
        raise ValueError(str(error)) from error
    except http.client.HTTPException as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def _read(answer: "http.client.HTTPResponse | urllib.error.HTTPError", max_bytes: int | None) -> HttpAnswer:
    content = answer.read() if max_bytes is None else answer.read(max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise ValueError(f"the answer has more than {max_bytes} bytes")
    return HttpAnswer(answer.status or 0, {name.lower(): value for name, value in answer.headers.items()}, content)
