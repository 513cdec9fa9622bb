"""How commands for people's voices are given the embedding model: a running server, or a model in this process."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.cli.shared.recordings import check_audio
from tritone.cli.shared.where import Where
from tritone.errors import InputError, TritoneError
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.report.table import visible

if TYPE_CHECKING:
    from tritone.audio.waveform import Waveform
    from tritone.bundle.manifest import Manifest
    from tritone.client import Client
    from tritone.client.segmenter import ServedSegmenter
    from tritone.diarization import NetworkDiarizer
    from tritone.kinds.segmentation.model import Segmenter
    from tritone.result import EmbeddingResult
    from tritone.speakers.archive import Floats
    from tritone.systems import System

DEFAULT_BUNDLE = "demo-speaker"

Store = Annotated[Path, typer.Option(metavar="DIR", help="The folder of enrolled speakers.")]


@dataclass(frozen=True)
class Limit:
    """The cosine above which two voices count as one, and where it comes from."""

    cosine: float
    source: str


@dataclass(frozen=True)
class Voices:
    """Embeddings (files, dim) of recordings, what made them, and its limit if there is one."""

    vectors: "Floats"
    made_by: dict[str, str]
    limit: Limit | None


@dataclass(frozen=True, kw_only=True)
class VoiceModel:
    """The options of commands that embed a few recordings: on a server, or with a model in this process, which is
    `DEFAULT_BUNDLE` unless another is named."""

    where: Where = field(default_factory=Where)
    threshold: Annotated[
        float | None,
        typer.Option(
            min=-1, max=1, help="Cosine above which voices are the same speaker's; the bundle's if not given."
        ),
    ] = None

    def embed(self, files: Sequence[Path]) -> Voices:
        """Embed recordings, all of them or none.

        Raises:
            typer.BadParameter: options that do not belong together or make no sense.
            TritoneError: the model cannot be used, or a recording cannot be embedded; of several the first is named.
        """
        check_audio(files, self.where.what, every=True)
        with self.open() as opened:
            return Voices(_vectors(opened.system, files), opened.made_by, opened.limit)

    @contextmanager
    def open(self) -> "Iterator[OpenModel]":
        """The model, ready to embed; errors as of `embed`."""
        where = self.where if self.where.url or self.where.model else replace(self.where, model=DEFAULT_BUNDLE)
        where.check(DEFAULT_BUNDLE)
        limit = None if self.threshold is None else Limit(self.threshold, "given by --threshold")
        system: System[EmbeddingResult]
        client: Client | None = None
        known: dict[str, str] = {}
        try:
            if where.url is not None:
                from tritone.systems import embedder as served

                client = where.connect()
                system = served(client, where.model, concurrency=where.concurrency)
            else:
                from tritone import Embedder, load_as
                from tritone.systems import BundleSystem

                embedder = load_as(Embedder, where.prepared(), **where.loading())
                manifest = embedder.bundle.manifest
                own = part.threshold if (part := manifest.find(EmbeddingPart)) is not None else None
                if limit is None and own is not None:
                    meaning = "where errors of both kinds are equally frequent, see its model card"
                    limit = Limit(own, f"of {manifest.name}: {meaning}")
                system = BundleSystem(embedder)
                known = sources_digest(manifest)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        with closing(system):
            try:
                system.prepare()
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
            made_by = {**system.describe(), **known}
            if client is None:
                yield OpenModel(system, made_by, limit, embedder.embed, embedder.sample_rate)
            else:
                info = client.model(where.model, kind="embedding")
                yield OpenModel(system, made_by, limit, _served(client, info.name), info.sample_rate, client)


def network_of(where: Where, *, streaming: bool, stack: ExitStack) -> "NetworkDiarizer | None":
    """The model that is named, if it is one that tells speakers apart itself; None of one for embeddings.

    Args:
        streaming: whether it is for streams, of which a server has models of their own.
        stack: closes the client of a server.

    Raises:
        typer.BadParameter: options that do not belong together or make no sense.
        TritoneError: the model cannot be used.
    """
    if where.model is None:
        return None
    from tritone.diarization import NetworkDiarizer

    try:
        if where.url is None:
            from tritone import load_as
            from tritone.bundle.bundle import Bundle
            from tritone.kinds import kind_of

            path = where.prepared()
            front: Any = kind_of(Bundle.open(path)).front()
            if not hasattr(front, "diarize"):
                return None
            where.check(DEFAULT_BUNDLE)
            model = load_as(front, path, **where.loading())
            model.open(streaming=streaming).warm_up()  # what is wrong with it concerns all recordings
            return NetworkDiarizer(
                lambda source: model.diarize(source).get(), model.stream, sample_rate=model.sample_rate
            )
        client = stack.enter_context(closing(where.connect()))
        info = client.model(where.model, kind=None)
        if info.kind not in ("diarization", "diarization-streaming"):
            return None
        info = client.model(where.model, kind="diarization-streaming" if streaming else "diarization")
        return NetworkDiarizer(
            lambda source: client.diarize(source, info.name).get(),
            lambda sample_rate: client.diarize_stream(info.name, sample_rate=sample_rate),
            sample_rate=info.sample_rate,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True)
class OpenModel:
    """A model that embeds files by its `system`, and waveforms (samples,) at `sample_rate` (Hz) by `embed`.

    `made_by`, `limit`: as of `Voices`. `client`: of the server, None for a bundle.
    """

    system: "System[EmbeddingResult]"
    made_by: dict[str, str]
    limit: Limit | None
    embed: "Callable[[Sequence[Waveform]], Floats]"
    sample_rate: int
    client: "Client | None" = None


@contextmanager
def with_store(model: VoiceModel, store: Path | None) -> "Iterator[tuple[OpenModel, dict[str, Floats]]]":
    """A model, and the voices that are enrolled in a store, by name; none without a store.

    Raises:
        typer.BadParameter: as of `VoiceModel.embed`, or no cosine is given from which a voice is an enrolled one.
        TritoneError: the model or the store cannot be used.
    """
    from tritone.speakers.store import SpeakerStore

    if store is not None:
        SpeakerStore(store).read()  # what is wrong with it is reported before a model is loaded
    with model.open() as opened:
        voices: dict[str, Floats] = {}
        if store is not None:
            voices = SpeakerStore(store).voices(opened.made_by)
            if opened.limit is None:
                raise typer.BadParameter("--store needs --threshold: this model does not come with one")
        yield opened, voices


def _served(client: "Client", model: str) -> "Callable[[Sequence[Waveform]], Floats]":
    def embed(waveforms: "Sequence[Waveform]") -> "Floats":
        import numpy as np

        vectors: Floats = np.stack([each.vector for each in client.embed(list(waveforms), model)])
        return vectors

    return embed


def sources_digest(manifest: "Manifest") -> dict[str, str]:
    """What stands for a model wherever it was exported, with whatever engines: the files that it was made of.

    Empty if the bundle does not name any.
    """
    sources = manifest.provenance.sources
    if not sources or (part := manifest.find(EmbeddingPart)) is None:
        return {}
    whole = [manifest.provenance.family, sorted(sources.values()), part.mean_subtracted]
    return {"sources_sha256": hashlib.sha256(json.dumps(whole).encode()).hexdigest()}


def _vectors(system: "System[EmbeddingResult]", files: Sequence[Path]) -> "Floats":
    import numpy as np

    from tritone.speakers.sound import check_sound

    check_sound(map(str, files))
    results = sorted(system.run(map(str, files)), key=lambda result: result.index)
    failed = [result for result in results if not result.ok]
    if failed:
        try:
            failed[0].get()
        except TritoneError as error:
            more = f" ({len(failed)} of {len(results)} files failed)" if len(failed) > 1 else ""
            raise type(error)(f"{error}{more}") from error
    vectors: Floats = np.stack([result.vector for result in results])
    for path, vector in zip(files, vectors, strict=True):
        if not vector.any() or not np.isfinite(vector).all():
            raise InputError(f"{visible(str(path))}: its embedding is zero or not finite; is it silence?")
    return vectors


def _segmenter_here(name: str) -> "Segmenter":
    from tritone import load_as
    from tritone.kinds.segmentation.model import Segmenter

    try:
        segmenter = load_as(Segmenter, name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    segmenter.offline.warm_up()  # what is wrong with it concerns all recordings
    return segmenter


def segmenter_of(opened: OpenModel, name: str) -> "Segmenter | ServedSegmenter":
    """The segmentation network that is named, opened: of the server, if there is one and the name is no path."""
    client = None if Path(name).exists() else opened.client
    segmenter = _segmenter_here(name) if client is None else client.segmenter(name)
    if segmenter.sample_rate != opened.sample_rate:
        raise typer.BadParameter(
            f"the segmentation network {name} is for {segmenter.sample_rate} Hz, the speaker model for "
            f"{opened.sample_rate} Hz; take models of one rate"
        )
    return segmenter
