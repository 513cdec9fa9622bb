"""What an operator says of models elsewhere: a file of upstreams, YAML or JSON.

    upstreams:
      - {name: voxtral, url: "http://vllm:8000/v1", model: mistralai/Voxtral-Mini-3B-2507, realtime: vllm}
      - {name: whisper, url: "https://api.example/v1", model: whisper-1, key_env: SPEECH_KEY, times: words}

Keys are named, not written: by a variable of the environment, or by a file.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from tritone.audio.files import check_sample_rate
from tritone.client.tls import TlsFiles
from tritone.errors import AudioError, InputError
from tritone.yaml_text import read_yaml

Times = Literal["none", "segments", "words"]
Realtime = Literal["none", "openai", "vllm"]

NAME = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,127}", re.ASCII)
KEY = re.compile(r"[!-~]{1,4096}")
RATES: Mapping[Realtime, int] = {"none": 24000, "openai": 24000, "vllm": 16000}
"""Of audio for a Realtime API, in Hz: OpenAI's only one, and what models of vLLM take."""


@dataclass(frozen=True, kw_only=True)
class UpstreamOptions:
    """One model of a server that speaks OpenAI's API.

    `name`: for clients of the gateway; `model`: as the server calls it, `name` if it is empty. `times`: those that the
    server gives in `verbose_json`. `transcriptions`: whether it has `/audio/transcriptions`, `translates` whether
    `/audio/translations`, `events` whether both send what they write where `stream=true` asks for it. `realtime`: whose
    Realtime API it has, `rate` that of its audio in Hz, 0 is what that API takes. `languages`: those that requests may
    name; any where there are none.
    """

    name: str
    url: str  # with the path before /audio/transcriptions, such as http://localhost:8000/v1
    model: str = ""
    key_env: str = ""
    key_file: Path | None = None
    ca: Path | None = None  # authority in PEM format of a server that the system does not trust
    times: Times = "none"
    transcriptions: bool = True
    translates: bool = False
    events: bool = False
    realtime: Realtime = "none"
    rate: int = 0
    languages: tuple[str, ...] = ()
    max_audio_s: float = 30.0  # of a request; longer recordings are cut at pauses
    max_requests: int = 32  # at once; others wait for their turn
    max_streams: int = 64  # at once; others are refused
    timeout_s: float = 60.0  # of a request with its attempts, and of the text after the end of a stream
    retries: int = 2  # where nothing was lost
    failures: int = 5  # one after the other, after which nothing is sent for `rest_s`
    rest_s: float = 10.0

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name must be letters, digits and any of . : / @ _ -, got {self.name[:80]!r}")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be like http://localhost:8000/v1, got {_without_user(self.url)!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError("url has a user, a query or a fragment; keys are named by key_env or key_file")
        try:
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"url: the port must be a number from 0 to 65535, got {parts.netloc!r}") from error
        for name, known in (("times", Times), ("realtime", Realtime)):
            if (value := getattr(self, name)) not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
        if self.key_env and self.key_file is not None:
            raise ValueError("key_env and key_file both name the key; one is needed")
        if not self.transcriptions and self.realtime == "none":
            raise ValueError("without transcriptions and realtime there is nothing to ask")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise ValueError(f"{name} must be a number of at least {least:g}, got {value}")
        if self.rate:
            try:
                check_sample_rate(self.rate)
            except (ValueError, AudioError) as error:
                raise ValueError(f"rate: {error}") from error
        if self.ca is not None:
            if parts.scheme != "https":
                raise ValueError("ca is for an url with https://; without TLS it would not be looked at")
            TlsFiles(ca=str(self.ca)).check()
        self.read_key()

    @property
    def audio_rate(self) -> int:
        """Of audio for the Realtime API, in Hz."""
        return self.rate or RATES[self.realtime]

    def read_key(self) -> str:
        """The server's key as it is now, "" if it needs none; a file may have another one later.

        Raises:
            ValueError: there is none where it should be, or it cannot be sent.
        """
        if self.key_env:
            where, found = f"the variable {self.key_env}", os.environ.get(self.key_env, "")
        elif self.key_file is not None:
            where = f"the file {self.key_file}"
            try:
                found = self.key_file.read_text(encoding="ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not ASCII text"
                raise ValueError(f"the key of upstream '{self.name}': {where} cannot be read: {reason}") from None
        else:
            return ""
        if not KEY.fullmatch(found.strip()):
            raise ValueError(
                f"the key of upstream '{self.name}': {where} must have 1 to 4096 printable ASCII characters without "
                "spaces; what it has is not shown here"
            )
        return found.strip()


_LEAST = {
    "max_audio_s": 2.0,
    "max_requests": 1,
    "max_streams": 1,
    "timeout_s": 0.001,
    "retries": 0,
    "failures": 1,
    "rest_s": 0.001,
}


def read_upstreams(file: Path) -> tuple[UpstreamOptions, ...]:
    """The upstreams of a file; paths in it are relative to its folder.

    Raises:
        ValueError: it cannot be read, or is not as described above.
    """
    try:
        found = read_yaml(file.read_bytes(), f"the file of upstreams {file}")
    except OSError as error:
        raise ValueError(f"the file of upstreams {file} cannot be read: {error.strerror or error}") from error
    except InputError as error:
        raise ValueError(str(error)) from error
    listed = found.get("upstreams") if isinstance(found, Mapping) and set(found) == {"upstreams"} else None
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"the file of upstreams {file} must have a list `upstreams:` and nothing else")
    made = []
    for place, each in enumerate(listed, 1):
        try:
            made.append(_made(each, file.parent))
        except ValueError as error:
            raise ValueError(f"the file of upstreams {file}: upstream {place}: {error}") from error
    return tuple(made)


def _made(entry: Any, folder: Path) -> UpstreamOptions:
    known = {each.name: each for each in fields(UpstreamOptions)}
    if not isinstance(entry, Mapping) or {"name", "url"} - set(entry):
        raise ValueError("must be a mapping with at least name and url")
    if unknown := set(map(str, entry)) - set(known):
        raise ValueError(f"has {', '.join(sorted(unknown))}, which is not known; there are {', '.join(known)}")
    given: dict[str, Any] = {}
    for name, value in entry.items():
        if name in ("key_file", "ca"):
            given[name] = folder / _typed(name, value, str)
        elif name == "languages":
            if not isinstance(value, list):
                raise ValueError("languages must be a list of codes")
            given[name] = tuple(_typed(name, each, str) for each in value)
        else:
            default = known[name].default
            given[name] = _typed(name, value, type(default) if isinstance(default, bool | int | float) else str)
    return UpstreamOptions(**given)


def _typed(name: str, value: Any, kind: type) -> Any:
    fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not fits:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise ValueError(f"{name} must be {words[kind]}, got {value!r}")
    return value


def _without_user(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", url)[:200]
