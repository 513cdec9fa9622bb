"""The options that the commands of `tritone bench` share, and what is made of them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.bench.generator import Audio, Method
from tritone.bench.plan import LatencyLimit, Percentile, parse_counts, parse_numbers
from tritone.bench.ramp import Limit
from tritone.bench.sweep import parse_option, short, text_of
from tritone.cli.shared import recordings
from tritone.corpus.dataset import Utterance, read_utterances
from tritone.errors import InputError
from tritone.evaluate.normalize import Case, Normalization, Punctuation, Units
from tritone.loadtest.requests.windows import WindowPlan
from tritone.repository import ModelOptions

DEFAULT_SECONDS = "5"
WINDOWS = WindowPlan()
TEXTS = Normalization()
METHOD = Method()

Model = Annotated[str | None, typer.Option(help="The model, if several are served.")]
Concurrency = Annotated[
    str | None, typer.Option(metavar="LOADS", help="Requests in flight: 1,2,4 or START:END:STEP (1:64:8), or both.")
]
BatchSize = Annotated[str, typer.Option(metavar="LIST", help="Utterances in one request, e.g. 1,8.")]
Streaming = Annotated[bool, typer.Option("--streaming", help="Measure live streams in real time.")]
Streams = Annotated[str | None, typer.Option(metavar="LOADS", help="Streams that are open at once, e.g. 50,100,200.")]
ChunkMs = Annotated[float | None, typer.Option(min=1, help=f"Audio sent at a time ({METHOD.chunk_ms:g}).")]
MaxLoad = Annotated[
    int | None, typer.Option("--max-streams", "--max-load", min=1, help="The most that a search tries.")
]
LatencyLimitMs = Annotated[
    float | None, typer.Option(help="Try no higher load once latency is beyond. Of streams: of chunks and final texts.")
]
PercentileOption = Annotated[Percentile, typer.Option(help="Which latency the limit is for.")]
Seconds = Annotated[
    str | None, typer.Option(metavar="LIST", help=f"Lengths of utterances: 2,5,8,10 ({DEFAULT_SECONDS} if not given).")
]
Lengths = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DISTRIBUTION",
        help="Mixed lengths: lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH, normal:MEAN,DEVIATION or file:PATH.",
    ),
]
AudioFiles = Annotated[
    list[Path] | None,
    typer.Option("--audio", help="A file or folder to send, once for each; with lengths: to cut them from."),
]
Wavscp = Annotated[Path | None, typer.Option(help="Files to send as a Kaldi wav.scp: one 'id path' a line.")]
Trans = Annotated[Path | None, typer.Option(help="With --wavscp: references, one 'id words' a line, for the WER.")]
Manifest = recordings.Manifests
DataDir = recordings.DataDir
WarmupS = Annotated[float, typer.Option(min=0, help="Warm-up before each point, in seconds.")]
WindowS = Annotated[float, typer.Option(help="Length of a window of measurement, in seconds.")]
Stability = Annotated[float, typer.Option(help="How far windows that agree may be from their mean, in percent.")]
MaxWindows = Annotated[int, typer.Option(min=1, help="Windows of a point until it is given up as unstable.")]
TimeoutS = Annotated[float, typer.Option(help="Limit of one request, in seconds.")]
Processes = Annotated[
    int | None, typer.Option(help="Processes of the generator; chosen by load and cores if not given.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn: lengths, files, arrivals.")]
CaseOption = Annotated[Case, typer.Option(help="For the WER: what to make of letter case.")]
PunctuationOption = Annotated[Punctuation, typer.Option(help="For the WER: what to do with punctuation.")]
UnitsOption = Annotated[Units, typer.Option(help="For the WER: what it counts, as for `tritone evaluate`.")]
MaxWer = Annotated[float | None, typer.Option(min=0, metavar="PERCENT", help="Fail if a WER is higher.")]
BuildOptions = Annotated[
    list[str] | None,
    typer.Option("--build", metavar="NAME=VALUE", help="An option of `tritone build`, e.g. instances=2; repeatable."),
]
Parameters = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="What requests ask for, e.g. search=rescoring,beam=20, search=fast-beam or window_s=2,shift_s=1.",
    ),
]
Output = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write report.json, .csv, .md, .html and plots there.")
]
Json = Annotated[Path | None, typer.Option(help="Write the report as JSON.")]
Csv = Annotated[Path | None, typer.Option(help="Write the figures as CSV.")]
Title = Annotated[str | None, typer.Option(help="Of the report.")]


def audio_of(
    *,
    seconds: str | None,
    lengths: Sequence[str] | None,
    files: Sequence[Path] | None,
    wavscp: Path | None,
    trans: Path | None,
    manifest: Sequence[str] | None,
    data_dir: Path | None,
    seed: int = 0,
) -> Audio:
    """What to send; utterances of `DEFAULT_SECONDS` when nothing is said."""
    given = [name for name, value in (("--audio", files), ("--wavscp", wavscp), ("--manifest", manifest)) if value]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} both name files; give one of them")
    if trans is not None and wavscp is None:
        raise typer.BadParameter("--trans goes with --wavscp")
    if files and data_dir is not None:
        raise typer.BadParameter("--data-dir goes with --wavscp or --manifest, or stands alone; --audio takes folders")
    given += ["--data-dir"] if data_dir is not None else []
    manifests = recordings.manifests_of(manifest)
    specs: list[str] = []
    try:
        if files or not given:
            utterances = [Utterance(str(path), path) for path in recordings.files_of(files or ())]
        else:
            utterances = read_utterances(
                wavscp=wavscp, trans=trans, manifest=manifests, data_dir=data_dir, need_text=trans is not None
            )
        specs = [f"{number:g}" for number in parse_numbers(seconds)] if seconds is not None else []
        specs += lengths or []
        return Audio(lengths=specs or ([] if given else [DEFAULT_SECONDS]), utterances=utterances, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except InputError as error:
        if specs:  # a length that makes no sense is wrong usage, a list that cannot be read is not
            raise typer.BadParameter(str(error)) from error
        raise


def method_of(
    *,
    warmup_s: float,
    window_s: float,
    stability: float,
    max_windows: int,
    timeout_s: float,
    processes: int | None,
    seed: int,
    metrics_url: str | None,
    normalization: Normalization,
    chunk_ms: float | None,
) -> Method:
    """How to measure."""
    try:
        windows = WindowPlan(
            warmup_s=warmup_s,
            window_s=window_s,
            max_window_s=window_s * WINDOWS.max_window_s / WINDOWS.window_s,
            stable_windows=min(WINDOWS.stable_windows, max_windows),
            max_windows=max_windows,
            tolerance=stability / 100,
        )
        return Method(
            windows=windows,
            timeout_s=timeout_s,
            processes=processes,
            seed=seed,
            metrics_url=metrics_url,
            normalization=normalization,
            chunk_ms=METHOD.chunk_ms if chunk_ms is None else chunk_ms,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def limit_of(limit_ms: float | None, percentile: Percentile, max_wer: float | None) -> Limit | None:
    """What a load must keep, if there is such a limit. `max_wer` is in percent."""
    if limit_ms is None:
        return None
    try:
        latency = LatencyLimit(limit_ms=limit_ms, percentile=percentile)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return Limit(latency=latency, max_wer=None if max_wer is None else max_wer / 100)


def model_options(assignments: Sequence[str] | None, **least: int) -> ModelOptions:
    """Options of `tritone build` from NAME=VALUE pairs; those of `least` are raised to that value unless given."""
    given: dict[str, Any] = {}
    try:
        for text in assignments or ():
            name, value = split_pair(text)
            field, parsed = parse_option(name, value)
            given[field] = parsed
        defaults = ModelOptions()
        raised = {name: max(value, getattr(defaults, name)) for name, value in least.items()}
        return ModelOptions(**(raised | given))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--build") from error


def labels_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """Labels from NAME=VALUE pairs."""
    return dict(split_pair(pair) for pair in pairs or ())


def build_labels(assignments: Sequence[str] | None) -> dict[str, str]:
    """Labels that tell of options of `tritone build`, as those of a sweep do."""
    pairs = (parse_option(*split_pair(text)) for text in assignments or ())
    return {short(field): text_of(value) for field, value in pairs}


def split_pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def check_outputs(*files: Path | None, folder: Path | None = None) -> None:
    """Say now, not after the measurement, what cannot be written. The folder is made, for nothing less is sure."""
    for file in files:
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"there is no folder {file.absolute().parent} for {file}")
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a folder; name a file")
        if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
            raise typer.BadParameter(f"{file} cannot be written; name another file")
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"the folder {folder} cannot be made ({error.strerror}); name another") from error
        if not os.access(folder, os.W_OK):
            raise typer.BadParameter(f"nothing can be written into {folder}; name another folder")


def counts_of(option: str, text: str) -> list[int]:
    """Whole numbers from 1; a complaint names the option."""
    try:
        return parse_counts(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error
