"""The options that the commands of `tritone bench` share, and what is made of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tritone.cli.shared import recordings
from tritone.cli.shared.what import Exporting, bundle_of
from tritone.corpus.dataset import Utterance, read_utterances
from tritone.errors import InputError
from tritone.loadtest.findings.result import REPORT, Report
from tritone.loadtest.pages.page import to_csv, write_report
from tritone.loadtest.plans.build_options import BuildOptions, parse_option, short, text_of
from tritone.loadtest.plans.generator import Audio
from tritone.loadtest.plans.plan import parse_counts, parse_numbers
from tritone.loadtest.plans.ramp import Limit, Percentile
from tritone.loadtest.requests.arrivals import Arrivals
from tritone.options.fields import described
from tritone.pipelines.embed_options import EmbedFields

DEFAULT_SECONDS = "5"
DEFAULT_LOADS = "1,2,4,8"

Protocol = Literal["grpc", "http"]
Builds = Annotated[
    list[str] | None,
    typer.Option("--build", metavar="NAME=VALUE", help="An option of `tritone build`, e.g. instances=2; repeatable."),
]


@dataclass(frozen=True, kw_only=True)
class LoadChoice:
    """The kind of load, and how much of it."""

    concurrency: Annotated[
        str | None,
        typer.Option(metavar="LOADS", help="Requests in flight: 1,2,4 or START:END:STEP (1:64:8), or both."),
    ] = None
    rate: Annotated[
        str | None, typer.Option(metavar="LOADS", help="Requests per second, whatever becomes of them: 10,20,50.")
    ] = None
    arrivals: Annotated[
        Arrivals | None, typer.Option(help="With --rate: poisson (as from many users, the default) or constant.")
    ] = None
    batch_size: Annotated[
        str, typer.Option(metavar="LIST", help="Utterances, or samples of --input, in one request: 1,8.")
    ] = "1"
    streaming: Annotated[bool, typer.Option("--streaming", help="Measure live streams in real time.")] = False
    streams: Annotated[str | None, typer.Option(metavar="LOADS", help="Streams open at once, e.g. 50,100,200.")] = None
    max_load: Annotated[int | None, typer.Option("--max-load", min=1, help="Largest load that a search tries.")] = None

    def check(self, context: typer.Context) -> None:
        """Refuse options of different kinds of load."""
        if sum((self.concurrency is not None, self.rate is not None, self.streaming)) > 1:
            raise typer.BadParameter("--concurrency, --rate and --streaming are three kinds of load; give one of them")
        if self.arrivals is not None and self.rate is None:
            raise typer.BadParameter("--arrivals goes with --rate")
        if not self.streaming and (self.streams is not None or is_given(context, "chunk_ms")):
            raise typer.BadParameter("--streams and --chunk-ms go with --streaming")
        if self.streaming and self.batch_size != "1":
            raise typer.BadParameter("--batch-size is for whole utterances; a stream sends one chunk at a time")

    def counts(self, default: str = "") -> list[int]:
        """Streams or requests in flight; none if there are none and no default."""
        text, name = (self.streams, "streams") if self.streaming else (self.concurrency, "concurrency")
        return counts_of(f"--{name}", text or default) if text or default else []


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How speaker models are asked to embed; None leaves it to the model."""

    embed_window_s: Annotated[float | None, typer.Option(help=described(EmbedFields)["window_s"].help)] = None
    embed_shift_s: Annotated[float | None, typer.Option(help=described(EmbedFields)["shift_s"].help)] = None

    @property
    def asked(self) -> dict[str, float | None]:
        """Parameters of requests."""
        return {"window_s": self.embed_window_s, "shift_s": self.embed_shift_s}


@dataclass(frozen=True, kw_only=True)
class LimitChoice:
    """The limits of a load."""

    latency_limit_ms: Annotated[
        float | None,
        typer.Option(help="Stop at the load that exceeds this latency. Streams: of chunks and final texts."),
    ] = None
    percentile: Annotated[Percentile, typer.Option(help="Latency that the limit applies to.")] = "p95"
    max_wer: Annotated[float | None, typer.Option(min=0, metavar="PERCENT", help="Fail if a WER is higher.")] = None

    def limit(self, audio: Audio) -> Limit | None:
        """The limit of a load, if there is one of latency."""
        if self.max_wer is not None and not audio.has_references:
            raise typer.BadParameter(
                "--max-wer needs references: --wavscp with --trans, or --manifest; without lengths"
            )
        if self.latency_limit_ms is None:
            return None
        try:
            return Limit(limit_ms=self.latency_limit_ms, percentile=self.percentile, max_wer=self.wer)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    @property
    def wer(self) -> float | None:
        """The highest word error rate, as a fraction."""
        return None if self.max_wer is None else self.max_wer / 100


@dataclass(frozen=True, kw_only=True)
class AudioChoice:
    """The audio that is sent."""

    seconds: Annotated[
        str | None,
        typer.Option(metavar="LIST", help=f"Lengths of utterances: 2,5,8,10 ({DEFAULT_SECONDS} if not given)."),
    ] = None
    lengths: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DISTRIBUTION",
            help="Mixed lengths: lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH, normal:MEAN,DEVIATION or file:PATH.",
        ),
    ] = None
    audio: Annotated[
        list[Path] | None,
        typer.Option(help="A file or folder to send, once for each; with lengths: to cut them from."),
    ] = None
    wavscp: Annotated[Path | None, typer.Option(help="Files to send as a Kaldi wav.scp: one 'id path' a line.")] = None
    trans: Annotated[
        Path | None, typer.Option(help="With --wavscp: references, one 'id words' a line, for the WER.")
    ] = None
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            help="Of any model: a sample to send (.json, .bin, .npz), or a folder of them; repeatable.",
        ),
    ] = None
    manifest: recordings.Manifests = None
    data_dir: recordings.DataDir = None

    def read(self, seed: int) -> Audio:
        """Read what to send; utterances of `DEFAULT_SECONDS` when nothing is named."""
        named = {"--audio": self.audio, "--wavscp": self.wavscp, "--manifest": self.manifest}
        given = [name for name, value in named.items() if value]
        if len(given) > 1:
            raise typer.BadParameter(f"{' and '.join(given)} both name files; give one of them")
        if self.trans is not None and self.wavscp is None:
            raise typer.BadParameter("--trans goes with --wavscp")
        if self.audio and self.data_dir is not None:
            raise typer.BadParameter("--data-dir goes with --wavscp or --manifest, or alone; --audio takes folders")
        given += ["--data-dir"] if self.data_dir is not None else []
        if self.inputs:
            if given or self.seconds is not None or self.lengths:
                raise typer.BadParameter("--input sends samples of a model's own inputs; leave options of audio out")
            return Audio(inputs=self.inputs, seed=seed)
        specs: list[str] = []
        try:
            if self.audio or not given:
                utterances = [Utterance(str(path), path) for path in recordings.files_of(self.audio or ())]
            else:
                utterances = read_utterances(
                    wavscp=self.wavscp,
                    trans=self.trans,
                    manifest=recordings.manifests_of(self.manifest),
                    data_dir=self.data_dir,
                    need_text=self.trans is not None,
                )
            specs = [f"{number:g}" for number in parse_numbers(self.seconds)] if self.seconds is not None else []
            specs += self.lengths or []
            lengths = specs or ([] if given else [DEFAULT_SECONDS])
            return Audio(lengths=lengths, utterances=utterances, seed=seed, is_default=not (specs or given))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        except InputError as error:
            if specs:  # a length that makes no sense is wrong usage, a list that cannot be read is not
                raise typer.BadParameter(str(error)) from error
            raise


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The files of a report."""

    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json, .csv, .md, .html and plots there.")
    ] = None
    report: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the report as JSON.")] = None
    csv: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write the figures as CSV.")] = None
    title: Annotated[str | None, typer.Option(help="Of the report.")] = None

    def check(self) -> None:
        """Report now, not after the measurement, what cannot be written. The folder is made: nothing less is sure."""
        for file in filter(None, (self.report, self.csv)):
            check_file(file)
        folder = self.output
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise typer.BadParameter(
                    f"the folder {folder} cannot be made ({error.strerror}); name another"
                ) from error
            if not os.access(folder, os.W_OK):
                raise typer.BadParameter(f"nothing can be written into {folder}; name another folder")

    def write(self, report: Report) -> None:
        """Write what was asked for; raises `InputError` if it cannot be written."""
        written = [str(file) for file in (self.report, self.csv) if file is not None]
        try:
            if self.report is not None:
                report.save(self.report)
            if self.csv is not None:
                self.csv.write_text(to_csv(report), encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"cannot write the report: {error}") from error
        if self.output is not None:
            count = len(write_report(report, self.output))
            written.append(f"{count} files to {self.output}, to begin with report.html")
        for each in written:
            typer.echo(f"wrote {each}", err=True)

    def keep(self, report: Report) -> None:
        """Write the JSON alone: a sweep may be long, and its machine may go down."""
        try:
            for file in self._reports():
                file.parent.mkdir(parents=True, exist_ok=True)
                report.save(file)
        except OSError as error:
            raise InputError(f"cannot write the report: {error}") from error

    def earlier(self) -> Report | None:
        """The report of an earlier run."""
        return next((Report.read(file) for file in self._reports() if file.exists()), None)

    def _reports(self) -> list[Path]:
        return [file for file in (self.report, self.output and self.output / REPORT) if file is not None]


def check_file(file: Path) -> None:
    """Refuse a file that cannot be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder} for {file}")
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder; name a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{file} cannot be written; name another file")


def build_options(assignments: Sequence[str] | None, *, max_streams: int | None) -> BuildOptions:
    """Options of `tritone build` from NAME=VALUE pairs; with at least so many streams, if there are any."""
    given: dict[str, Any] = {}
    try:
        for text in assignments or ():
            field, value = parse_option(*split_pair(text))
            given[field] = value
        if max_streams is not None:
            given.setdefault("max_streams", max(max_streams, BuildOptions().max_streams))
        options = BuildOptions(**given)
        if max_streams is not None and options.layout == "ensemble":
            raise ValueError("layout=ensemble is for whole utterances; leave --streaming out")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--build") from error
    return options


def bundle_for(what: str, exporting: Exporting, options: BuildOptions, sent: Audio) -> str:
    """The bundle of WHAT that is served with these options and gets this; exported where it is none."""
    recordings.check_audio([each.audio for each in sent.utterances], what, every=True)
    device = "cuda" if options.device == "gpu" else "cpu"
    return bundle_of(what, exporting, device=device, precision=options.precision or None)


def labels_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """Labels from NAME=VALUE pairs."""
    return dict(split_pair(pair) for pair in pairs or ())


def build_labels(assignments: Sequence[str] | None) -> dict[str, str]:
    """Labels of options of `tritone build`, as those of a sweep."""
    pairs = (parse_option(*split_pair(text)) for text in assignments or ())
    return {short(field): text_of(value) for field, value in pairs}


def split_pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def counts_of(option: str, text: str) -> list[int]:
    """Whole numbers from 1; the message of an error names the option."""
    try:
        return parse_counts(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
