"""Systems as people write them on a command line.

    NAME=BUNDLE[,key=value...]                       a bundle (folder, shipped name, s3://...), in this process
    NAME=grpc://host:port/model[,key=value...]       a served model; http://, grpcs:// and https:// as well

`NAME=` may be left out. For bundles the keys are the options of `tritone.load`, whatever they are; for served models
those that requests have (`search=rescoring,beam=20`); for all that transcribe also those of `COMMON`. For embeddings
the keys are the options of speaker models, and those of `EMBEDDER_SERVED`. Names and values
have no commas; several hotwords are separated by semicolons: `hotwords=anna:8;new york:5`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit, urlunsplit

from tritone.bundle.attending import AttendingPart
from tritone.client.defaults import DEFAULT_CHUNK_MS
from tritone.kinds.speech import speech_kind
from tritone.options.fields import described
from tritone.pipelines.embed_options import EmbedFields
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.result import EmbeddingResult, TranscriptResult
from tritone.search.options import PARAMETERS, idle_options, used_by
from tritone.storage import parse
from tritone.systems.bundled import BundleSystem
from tritone.systems.served import embedder, transcriber
from tritone.systems.streams import Playback
from tritone.systems.system import System

if TYPE_CHECKING:
    from tritone import Model
    from tritone.client import Client

    Connect = Callable[..., Client]

LOADING = {"device": "str", "threads": "int", "runtime": "str", "precision": "str", "compile": "str"}
LOADING |= {"max_audio_s": "float", "lm": "str", "lm_unit": "str", "chunk_size": "int", "left_chunks": "int"}
LOADING |= {"vad": "str", "draft": "str", "draft_precision": "str", "trust": "bool"}
COMMON = {"mode": "str", "chunk_ms": "float", "realtime": "bool", "concurrency": "int"}
REQUEST = dict.fromkeys(PARAMETERS, "str")  # the server reads them
SERVED = {"timeout_s": "float", "vad": "str"} | REQUEST
EMBEDDER_SERVED = {"timeout_s": "float", "concurrency": "int", "window_s": "float", "shift_s": "float"}
TRUE, FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A system that is not open yet: what to call it, a bundle or an address, options as text."""

    name: str
    target: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        return "://" in self.target and parse(self.target) is None


def known_options(served: bool) -> Mapping[str, str]:
    """The options of a system that transcribes, each with the type its value is read as."""
    return COMMON | (SERVED if served else load_options())


def embedder_options(served: bool) -> Mapping[str, str]:
    """The options of a system that embeds."""
    return EMBEDDER_SERVED if served else load_options(embeds=True)


def parse_spec(text: str, known_to: Callable[[bool], Mapping[str, str]] = known_options) -> Spec:
    """Read a specification; see the top of this file.

    Args:
        known_to: the options of served models (True) and of bundles (False), if not those of what transcribes.

    Raises:
        ValueError: it has no target, or an option is not `key=value`, unknown, or given twice.
    """
    head, *rest = [part.strip() for part in text.split(",")]
    name, equals, target = head.partition("=")
    if "/" in name or not equals:  # a folder or an address, which may have such a sign too
        name, target = "", head
    if not target or head.startswith("="):
        raise ValueError(f"{text!r} names nothing to run; write NAME=BUNDLE or NAME=grpc://host:port/model")
    options: dict[str, str] = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"{text!r}: {part!r} is not key=value")
        if key in options:
            raise ValueError(f"{text!r}: {key} is given twice")
        options[key] = value
    spec = Spec(name=name.strip() or ",".join([_short(target), *rest]), target=target, options=options)
    known = known_to(spec.is_served)
    if unknown := [key for key in options if key not in known]:
        what = "a served model" if spec.is_served else "a bundle"
        raise ValueError(f"{text!r}: unknown {', '.join(unknown)}; {what} takes {', '.join(known)}")
    return spec


def open_system(
    spec: Spec | str,
    *,
    playback: Playback | None = None,
    concurrency: int | None = None,
    timeout_s: float | None = None,
    details: bool = False,
    connect: "Connect | None" = None,
) -> System[TranscriptResult]:
    """Open what a specification names, to transcribe. Close it when it is no longer needed.

    Args:
        playback, concurrency, timeout_s: for systems whose own options do not say otherwise; `timeout_s` of a served
            model's requests, in seconds.
        details: of a served model, also ask for tokens, words, times and confidences.
        connect: makes a client of an address and `timeout_s`; `Client` if not given.

    Raises:
        ValueError: the specification, an option of it or the address makes no sense.
        TritoneError: the bundle is missing or damaged. A server is not asked before `prepare`.
    """
    spec = parse_spec(spec) if isinstance(spec, str) else spec
    options = option_values(spec, known_options(spec.is_served))
    if "hotwords" in options:
        options["hotwords"] = options["hotwords"].replace(";", ",")
    playback = _playback(spec, options, playback)
    concurrency = options.pop("concurrency", concurrency)
    if spec.is_served:
        search = {key: options.pop(key) for key in REQUEST if key in options}
        vad = options.pop("vad", None)
        client, model = _connect(spec, options, timeout_s, connect)
        return transcriber(
            client,
            model,
            name=spec.name,
            playback=playback,
            concurrency=concurrency,
            details=details,
            search=search,
            vad=vad,
        )
    mode = options.get("search", "greedy")
    if idle := idle_options(options, mode):
        raise ValueError(
            f"{spec.name}: {', '.join(idle)} has no effect with search={mode}; add search={used_by(idle)}, or leave it "
            "out"
        )
    from tritone import load

    recognizer = load(spec.target, **options)
    if recognizer.bundle.manifest.find(AttendingPart) is None:
        speech_kind(recognizer.bundle)
    return BundleSystem(recognizer, name=spec.name, playback=playback, concurrency=concurrency, options=options)


def open_embedder_system(
    spec: Spec | str, *, concurrency: int | None = None, timeout_s: float | None = None
) -> System[EmbeddingResult]:
    """Open what a specification names, to embed. Close it when it is no longer needed.

    Args:
        concurrency, timeout_s: requests in flight and the limit of one in seconds, for a served model whose own options
            do not say otherwise.

    Raises:
        ValueError: the specification, an option of it or the address makes no sense.
        TritoneError: the bundle is missing, damaged or of another kind. A server is not asked before `prepare`.
    """
    spec = parse_spec(spec, embedder_options) if isinstance(spec, str) else spec
    options = option_values(spec, embedder_options(spec.is_served))
    if not spec.is_served:
        from tritone import Embedder, load_as

        return BundleSystem(load_as(Embedder, spec.target, **options), name=spec.name, options=options)
    concurrency = options.pop("concurrency", concurrency)
    windows = {key: options.pop(key, None) for key in ("window_s", "shift_s")}
    client, model = _connect(spec, options, timeout_s)
    return embedder(client, model, name=spec.name, concurrency=concurrency, **windows)


def _connect(
    spec: Spec, options: dict[str, Any], timeout_s: float | None, connect: "Connect | None" = None
) -> "tuple[Client, str | None]":
    """A client for the address of a specification, and its model."""
    from tritone.client import Client

    address, model = split_address(spec.target)
    if timeout_s is not None:
        options.setdefault("timeout_s", timeout_s)
    return (connect or Client)(address, **options), model


def load_options(*, embeds: bool = False) -> dict[str, str]:
    """The options of `tritone.load` that text can give, each with the type its value is read as.

    Args:
        embeds: those of models that embed, in place of those that transcribe.
    """
    from tritone import Embedder, Recognizer, Transcriber  # a server's client need not wait for them

    models: tuple[type[Model], ...] = (Embedder,) if embeds else (Recognizer, Transcriber)
    requests = described(EmbedFields) if embeds else {**described(DecodingOptions), **PARAMETERS}
    known = {"trust", *(name for model in models for name in (*model.placed, *model.settings))}
    own = {name: kind for name, kind in LOADING.items() if name in known}
    return own | {name: _type(each.type) for name, each in requests.items()}


def _type(kind: Any) -> str:
    """How to read a value of this type from text; what is no number and no switch is read by who takes it."""
    kinds = {each for each in get_args(kind) or (kind,) if each is not NoneType}
    return next((each.__name__ for each in (bool, int, float) if kinds == {each}), "str")


def option_values(spec: Spec, kinds: Mapping[str, str]) -> dict[str, Any]:
    """The options of a specification, read as what `kinds` says they are; raises `ValueError` if one cannot be."""
    return {key: _value(spec, key, text, kinds[key]) for key, text in spec.options.items()}


def _value(spec: Spec, key: str, text: str, kind: str) -> Any:
    readers: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": _flag, "str": str}
    try:
        return readers[kind](text)
    except ValueError:
        wanted = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        raise ValueError(f"{spec.name}: {key} must be {wanted}, got {text!r}") from None


def _flag(text: str) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise ValueError(text)
    return text.lower() in TRUE


def _playback(spec: Spec, options: dict[str, Any], default: Playback | None) -> Playback | None:
    """Take the options of streaming out of `options`."""
    mode = options.pop("mode", "offline" if default is None else "streaming")
    if mode not in ("offline", "streaming"):
        raise ValueError(f"{spec.name}: mode must be offline or streaming, got {mode!r}")
    chunk_ms, realtime = options.pop("chunk_ms", None), options.pop("realtime", None)
    if mode == "offline":
        if chunk_ms is not None or realtime is not None:
            raise ValueError(f"{spec.name}: chunk_ms and realtime go with mode=streaming")
        return None
    fallback = default or Playback(chunk_ms=DEFAULT_CHUNK_MS)
    try:
        return Playback(
            chunk_ms=fallback.chunk_ms if chunk_ms is None else chunk_ms,
            realtime=fallback.realtime if realtime is None else realtime,
        )
    except ValueError as error:
        raise ValueError(f"{spec.name}: {error}") from None


def split_address(target: str) -> tuple[str, str | None]:
    """Split `grpc://host:port/model`; what comes before the model in an HTTP path belongs to the server."""
    parts = urlsplit(target)
    prefix, _, model = parts.path.rpartition("/")
    return urlunsplit((parts.scheme, parts.netloc, prefix, parts.query, parts.fragment)), model or None


def _short(target: str) -> str:
    return target if "://" in target else target.rstrip("/").rpartition("/")[2] or target
