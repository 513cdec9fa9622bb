"""Options that give words their speakers, whatever transcribes."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.audio.files import Selection, is_pipe
from tritone.cli.shared.speaker_options import DEFAULT_BUNDLE, VoiceModel, network_of, segmenter_of, with_store
from tritone.cli.shared.where import Where
from tritone.errors import InputError, TritoneError
from tritone.paths import stored

if TYPE_CHECKING:
    from tritone.client.playback import OpenStream
    from tritone.diarization import Diarizer, NetworkDiarizer
    from tritone.result import TranscriptResult
    from tritone.systems import System
    from tritone.systems.streams import Opener, PartialListener
    from tritone.systems.system import Mode


@dataclass(frozen=True, kw_only=True)
class SpeakerLabels:
    """Whether words get speakers, and how these are distinguished; None is not given."""

    speakers: Annotated[
        bool, typer.Option("--speakers", help="Say who speaks: a line for each turn, words with their speakers.")
    ] = False
    speaker_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help=f"With --speakers: a model for voices, as --model is ({DEFAULT_BUNDLE} if not given), or with --url a "
            "served model for embeddings; or one that tells speakers apart itself.",
        ),
    ] = None
    segmentation: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="With --speakers: a segmentation network (`tritone export pyannote`) in this process, or with "
            "--url a served one, which finds who talk at once.",
        ),
    ] = None
    num_speakers: Annotated[
        int | None, typer.Option(min=1, help="With --speakers: how many there are, if that is known.")
    ] = None
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --speakers: enrolled speakers, called by their names.")
    ] = None
    speaker_threshold: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="With --store: cosine from which a voice is an enrolled one; the bundle's."),
    ] = None

    def check(self, *, streaming: bool, ray: bool) -> None:
        """Raise `typer.BadParameter` if options do not belong together."""
        given = [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]
        if given and not self.speakers:
            raise typer.BadParameter(f"--{given[0].replace('_', '-')} goes with --speakers")
        if self.speaker_threshold is not None and self.store is None:
            raise typer.BadParameter("--speaker-threshold goes with --store")
        if self.speakers and ray:
            raise typer.BadParameter("--speakers reads files of this machine; leave --ray out")
        if streaming and (self.num_speakers is not None or self.segmentation is not None):
            raise typer.BadParameter(
                "--num-speakers and --segmentation are for whole files: --streaming labels as the audio goes on"
            )

    @contextmanager
    def added_to(self, system: "System[TranscriptResult]", where: "Where") -> "Iterator[System[TranscriptResult]]":
        """The system with speakers in its transcripts of whole files, whose words need their times."""
        from tritone.diarization import Diarizer, SpeakerOptions

        model = self._model(where)
        chosen = {key: str(value) for key, value in vars(self).items() if value is not None}
        with ExitStack() as stack:
            if (network := network_of(model.where, streaming=False, stack=stack)) is not None:
                self._check_alone()
                yield _Labelled(system, network, chosen)
                return
            opened, voices = stack.enter_context(with_store(model, self.store))
            diarizer = Diarizer(
                opened.embed,
                sample_rate=opened.sample_rate,
                segmenter=None if self.segmentation is None else segmenter_of(opened, self.segmentation),
                options=SpeakerOptions(num_speakers=self.num_speakers),
                enrolled=voices,
                enrolled_cosine=None if opened.limit is None else opened.limit.cosine,
            )
            described = {f"speakers_{key}": value for key, value in opened.made_by.items()}
            yield _Labelled(system, diarizer, described | chosen)

    def around(self, where: "Where", stack: ExitStack) -> "Callable[[Opener, int], AbstractContextManager[OpenStream]]":
        """What opens streams whose words get speakers as they come; see `Playback`. `stack` closes the model."""
        model = self._model(where)
        if (network := network_of(model.where, streaming=True, stack=stack)) is None:
            opened, voices = stack.enter_context(with_store(model, self.store))
            embedding: dict[str, Any] = {
                "sample_rate": opened.sample_rate,
                "enrolled": voices,
                "enrolled_cosine": None if opened.limit is None else opened.limit.cosine,
            }
        else:
            self._check_alone()

        @contextmanager
        def labelled(open_text: "Opener", sample_rate: int) -> "Iterator[OpenStream]":
            from tritone.diarization import SpeakerWords, VoiceWords

            with open_text() as opened_text:
                text: Any = opened_text  # closed by its own context
                if network is None:
                    yield VoiceWords(text, opened.embed, audio_rate=sample_rate, **embedding)
                    return
                with closing(network.stream(sample_rate)) as speakers:
                    yield SpeakerWords(text, speakers)

        return labelled

    def _model(self, where: "Where") -> VoiceModel:
        return VoiceModel(
            threshold=self.speaker_threshold,
            where=Where(
                url=where.url,
                model=self.speaker_model,
                protocol=where.protocol,
                connection=where.connection,
                device=where.device,
                exporting=where.exporting,
            ),
        )

    def _check_alone(self) -> None:
        if self.num_speakers is not None or self.store is not None or self.segmentation is not None:
            raise typer.BadParameter(
                "--num-speakers, --store and --segmentation are for models for embeddings; this one tells speakers "
                "apart itself"
            )


class _Labelled:
    """A system whose transcripts get speakers: files are read a second time, where the transcript has words."""

    def __init__(
        self,
        system: "System[TranscriptResult]",
        diarizer: "Diarizer | NetworkDiarizer",
        described: Mapping[str, str],
    ) -> None:
        self._system, self._diarizer, self._described = system, diarizer, described
        self.name: str = system.name
        self.mode: Mode = system.mode
        self.concurrency: int = system.concurrency
        self.batch: int = system.batch

    def describe(self) -> Mapping[str, str]:
        return {**self._system.describe(), **self._described}

    def prepare(self, *, warm_up: bool = False) -> None:
        self._system.prepare(warm_up=warm_up)

    def run(
        self, paths: "Iterable[str | Selection]", on_partial: "PartialListener | None" = None
    ) -> "Generator[TranscriptResult, None, None]":
        with closing(self._system.run(paths, on_partial)) as results:
            for result in results:
                yield self._labelled(result)

    def close(self) -> None:
        self._system.close()

    def _labelled(self, result: "TranscriptResult") -> "TranscriptResult":
        from tritone.diarization import speech_of, with_speakers

        if result.value is None:
            return result
        try:
            if stored(result.source) is not None or is_pipe(result.source):
                raise InputError(
                    f"{result.source}: --speakers reads files of this machine, a second time; copy it to a file first"
                )
            found = self._diarizer.diarize(result.source, speech=speech_of(result.value))
            value: Any = with_speakers(result.value, found.turns)
        except TritoneError as error:
            return replace(result, value=None, error=error)
        return replace(result, value=value)
