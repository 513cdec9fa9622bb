"""Who asks: the name behind a key or token, what it may use, and what goes with its requests to Triton.

A file of keys, YAML or JSON, says who may ask; without one, everybody may:

    keys:
      - {name: call-centre, sha256: 9f86d0…, streams: 20, requests_per_minute: 600, audio_s_per_hour: 36000}
    openid: {issuer: "https://id.example", audience: speech, jwks: "https://id.example/keys", streams: 4}
    anybody: {streams: 2}

It has the hashes of keys and not the keys. It is read again when it changes.
"""

import hashlib
import re
import secrets
import stat
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritone.errors import InputError, OperatorError
from tritone.gateway.accounts import NO_LIMITS, Account, CallerLimits
from tritone.gateway.refusal import LOG, GatewayRefusal
from tritone.installing import pip_install
from tritone.yaml_text import read_yaml

if TYPE_CHECKING:
    from tritone.gateway.openid import Tokens

ANYBODY = "anybody"
LOOK_S = 2.0  # between two looks at the file
MAX_ACCOUNTS = 10_000  # of callers with tokens, who are not listed anywhere
MAX_KEY = 16_384  # characters
LIMITS = {"streams", "requests_per_minute", "audio_s_per_hour"}
HASH = re.compile("[0-9a-f]{64}")
TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")  # the form of a signed JWT
PROTOCOL_KEY = "openai-insecure-api-key."  # how OpenAI's clients in browsers send one, which cannot set headers
SESSION_KEY = "realtime-token."  # how NVIDIA's Realtime client sends the secret of its session
SECRET_S = 60.0  # of a session's secret, until its connection is made
MAX_SECRETS = 10_000
IN_PROTOCOL = (PROTOCOL_KEY, SESSION_KEY)
SCHEMES = ("bearer", "token")  # Deepgram's clients say Token; in browsers it is the subprotocol before the key


def new_key() -> tuple[str, str]:
    """A key that cannot be guessed, and its hash for the file."""
    key = f"sk-{secrets.token_urlsafe(32)}"
    return key, hash_of(key)


def hash_of(key: str) -> str:
    """The hash of a key. Keys are random, so that a plain hash of one cannot be turned back."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(kw_only=True)
class Caller:
    """Who asks, for one request or connection.

    `protocol`: the protocol, for metrics. `headers`: what is sent on to Triton, such as those of a trace.
    """

    account: Account = field(default_factory=lambda: Account(ANYBODY))
    protocol: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the key or token; never the key itself."""
        return self.account.name

    def streaming(self) -> AbstractContextManager[None]:
        """Hold one of the caller's live streams; raises `GatewayRefusal` if it has none left."""
        return self.account.streaming()

    def count_audio(self, audio_s: float) -> None:
        """Count audio, in seconds; raises `GatewayRefusal` if it is more than the caller may send."""
        self.account.count_audio(audio_s)


class Callers:
    """All who may ask.

    Args:
        file: of keys; None lets everybody ask.

    Raises:
        ValueError: the file cannot be read, or is not as described above.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._accounts: dict[str, Account] = {}
        self._people: dict[str, Account] = {}  # with tokens
        self._secrets: dict[str, tuple[float, Account]] = {}  # of sessions, with their ends, in the order of these
        self._looked = time.monotonic()
        self._stamp: tuple[int, int] | None = None
        self._rules = _Rules(anybody=NO_LIMITS)
        if file is not None:
            self._stamp = _stamp(file)
            self._rules = _Rules.read(file)
        self._anybody = Account(ANYBODY, self._rules.anybody or NO_LIMITS)

    async def account(self, headers: Mapping[str, str], query: Mapping[str, str]) -> Account:
        """Who sent a request with these headers (names in lower case) and this query; counts the request.

        Raises:
            GatewayRefusal: nobody that may ask, or too often.
        """
        self._look()
        found = await self._found(_shown(headers, query))
        found.request()
        return found

    def secret(self, account: Account) -> tuple[str, float]:
        """A key of a caller for one session, for a client that is not to have the caller's own; seconds it is good for.

        It is known to this process alone.
        """
        now = time.monotonic()
        for old in [each for each, (ends, _) in self._secrets.items() if ends < now]:
            del self._secrets[old]
        if len(self._secrets) >= MAX_SECRETS:
            raise GatewayRefusal(503, f"{MAX_SECRETS} sessions wait for their connections, the most there may be", 1.0)
        secret = f"ek_{secrets.token_urlsafe(24)}"
        self._secrets[secret] = now + SECRET_S, account
        return secret, SECRET_S

    async def _found(self, key: str) -> Account:
        ends, account = self._secrets.get(key, (0.0, None))
        if account is not None and ends > time.monotonic():
            return account
        rules = self._rules
        if not key or not (rules.keys or rules.tokens):
            if rules.anybody is None:
                raise GatewayRefusal(401, "a key is needed: Authorization: Bearer KEY")
            self._anybody.change(rules.anybody)
            return self._anybody
        if entry := rules.keys.get(hash_of(key)):
            known = self._accounts.setdefault(entry[0], Account(*entry))
            known.change(entry[1])
            return known
        if rules.tokens is not None and TOKEN.fullmatch(key):
            name = await rules.tokens.name(key)
            if name not in self._people and len(self._people) >= MAX_ACCOUNTS:
                self._people = {name: each for name, each in self._people.items() if not each.is_idle}
            person = self._people.setdefault(name, Account(name, rules.people))
            person.change(rules.people)
            return person
        raise GatewayRefusal(401, "this key is not known")

    def _look(self) -> None:
        """Read the file again if it changed; one that cannot be used changes nothing."""
        now = time.monotonic()
        if self._file is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        if (stamp := _stamp(self._file)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._rules = _Rules.read(self._file)
        except ValueError as error:
            LOG.error("the new keys cannot be used, the old ones stay: %s", error)


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """What the file says. `keys`: names and limits by hashes; `anybody`: limits without a key, None refuses."""

    keys: Mapping[str, tuple[str, CallerLimits]] = field(default_factory=dict)
    tokens: "Tokens | None" = None
    people: CallerLimits = NO_LIMITS  # with tokens
    anybody: CallerLimits | None = None

    @classmethod
    def read(cls, file: Path) -> "_Rules":
        try:
            found = read_yaml(file.read_bytes(), f"the file of keys {file}")
            if file.stat().st_mode & stat.S_IWOTH:
                LOG.warning("everybody on this machine may write %s, and let themselves in: chmod o-w %s", file, file)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(
                f"the file of keys {file} cannot be read: {reason}. `tritone gateway --new-key NAME` makes a "
                "key and its entry."
            ) from error
        except InputError as error:
            raise ValueError(str(error)) from error
        try:
            return cls._made(_mapping(found, {"keys", "openid", "anybody"}, "the file"), file.parent)
        except ValueError as error:
            raise ValueError(f"the file of keys {file}: {error}") from error

    @classmethod
    def _made(cls, found: Mapping[str, Any], folder: Path) -> "_Rules":
        keys: dict[str, tuple[str, CallerLimits]] = {}
        listed = found.get("keys") or []
        if not isinstance(listed, list):
            raise ValueError("keys must be a list")
        for place, each in enumerate(listed, 1):
            entry = _mapping(each, {"name", "sha256"} | LIMITS, f"key {place}")
            name, digest = entry.get("name"), str(entry.get("sha256", "")).lower()
            if not isinstance(name, str) or not name:
                raise ValueError(f"key {place} has no name")
            if not HASH.fullmatch(digest):
                raise ValueError(
                    f"key {place} ({name}): sha256 must be 64 hexadecimal digits; `tritone gateway --new-key NAME` "
                    "makes a key and its hash"
                )
            if digest in keys:
                raise ValueError(f"key {place} ({name}) is that of {keys[digest][0]}")
            keys[digest] = name, CallerLimits.of(entry)
        anybody = None if "anybody" not in found else _mapping(found["anybody"] or {}, LIMITS, "anybody")
        tokens, people = None, NO_LIMITS
        if "openid" in found:
            tokens, people = _openid(found["openid"], folder)
        limits = None if anybody is None else CallerLimits.of(anybody)
        return cls(keys=keys, tokens=tokens, people=people, anybody=limits)


def _openid(value: Any, folder: Path) -> "tuple[Tokens, CallerLimits]":
    try:
        from tritone.gateway.openid import OpenId, Tokens
    except ImportError as error:
        raise OperatorError(f"openid needs PyJWT: {pip_install('gateway')}") from error
    entry = _mapping(value, {"issuer", "audience", "jwks", "name"} | LIMITS, "openid")
    own = {name: each for name, each in entry.items() if name not in LIMITS}
    if missing := {"issuer", "audience", "jwks"} - set(own):
        raise ValueError(f"openid has no {', '.join(sorted(missing))}")
    if "://" not in str(own["jwks"]):
        own["jwks"] = str(folder / str(own["jwks"]))
    return Tokens(OpenId(**own)), CallerLimits.of(entry)


def _mapping(value: Any, known: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a mapping with {', '.join(sorted(known))}")
    if unknown := set(map(str, value)) - known:
        raise ValueError(
            f"{what} has {', '.join(sorted(unknown))}, which is not known; there are {', '.join(sorted(known))}"
        )
    return value


def _shown(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    """The key or token of a request; "" if it has none. Browsers' WebSockets can set no header."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
    found = (
        (bearer.strip() if scheme.lower() in SCHEMES else "")
        or headers.get("x-api-key", "")
        or next((each.removeprefix(key) for each in offered for key in IN_PROTOCOL if each.startswith(key)), "")
        or (offered[1] if len(offered) > 1 and offered[0] in SCHEMES else "")
        or query.get("key", "")
    )
    if len(found) > MAX_KEY:
        raise GatewayRefusal(401, f"a key has at most {MAX_KEY} characters")
    return found


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
