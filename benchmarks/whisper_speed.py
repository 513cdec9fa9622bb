"""A Whisper bundle beside faster-whisper on the same recordings: processor seconds, wall clock, and peak memory.

    python -m benchmarks.whisper_speed my-tiny.en ../shared/data/librispeech_mini --model CTRANSLATE2_FOLDER \
        --python FASTER_WHISPER_VENV/bin/python [--only one,together,memory] [--output docs/performance/whisper.json]

Each side is a process of its own that has its model in memory; sides take turns, on the same cores and with as many
threads each. faster-whisper runs in an environment of its own. Three cases: `one` recording after the other; eight
recordings `together`, here as eight requests to a server, there by the better of the batched pipeline and several
workers; and `memory`, the peak of a process that transcribes the eight in one call.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sides import Side, serve
from benchmarks.whisper_reference import RATE, recordings

CLIPS = 8
PRECISIONS = {"int8": "int8", "fp32": "float32"}  # here, and there
Texts = list[str]
Work = Callable[[Sequence[np.ndarray]], Texts]


@contextmanager
def here(arguments: argparse.Namespace) -> Iterator[Work]:
    """This project, one call for each recording, or one for all where memory is measured."""
    import tritone

    options = _decoding(arguments)
    model = tritone.load(arguments.bundle, precision=arguments.precision, threads=arguments.threads, **options)
    calls = (lambda clips: [list(clips)]) if arguments.case == "memory" else (lambda clips: [[each] for each in clips])
    yield lambda clips: [
        found.get().text for call in calls(clips) for found in model.transcribe(call, sample_rate=RATE)
    ]


@contextmanager
def served(arguments: argparse.Namespace) -> Iterator[Work]:
    """This project's server, and a client that asks for all recordings at once."""
    from benchmarks.served import MODEL, serving
    from tritone.bundle import Bundle
    from tritone.client import Client
    from tritone.repository import ModelOptions

    options = ModelOptions(precision=arguments.precision, decoding=json.dumps(_decoding(arguments)))
    with (
        serving(Bundle.open(arguments.bundle), "offline", options) as server,
        Client(server.grpc_address) as client,
        ThreadPoolExecutor(CLIPS) as pool,
    ):
        yield lambda clips: list(
            pool.map(lambda clip: client.transcribe(clip, MODEL, sample_rate=RATE).get().text, clips)
        )


@contextmanager
def there(arguments: argparse.Namespace) -> Iterator[Work]:
    """faster-whisper, one recording after the other."""
    model = _faster_whisper(arguments, cpu_threads=arguments.threads)
    yield lambda clips: [_text(model.transcribe(clip, **_asked(arguments))) for clip in clips]


@contextmanager
def workers(arguments: argparse.Namespace) -> Iterator[Work]:
    """faster-whisper with as many workers as there are threads, each of them with one."""
    model = _faster_whisper(arguments, cpu_threads=1, num_workers=arguments.threads)
    with ThreadPoolExecutor(CLIPS) as pool:
        yield lambda clips: list(pool.map(lambda clip: _text(model.transcribe(clip, **_asked(arguments))), clips))


@contextmanager
def batched(arguments: argparse.Namespace) -> Iterator[Work]:
    """faster-whisper's batched pipeline, which takes one recording: all of them in a row, and where each begins."""
    model = _faster_whisper(arguments, cpu_threads=arguments.threads)
    pipeline = import_module("faster_whisper").BatchedInferencePipeline(model=model)

    def work(clips: Sequence[np.ndarray]) -> Texts:
        ends = np.cumsum([len(clip) / RATE for clip in clips]).tolist()
        places = [{"start": start, "end": end} for start, end in zip([0.0, *ends], ends, strict=False)]
        found, _ = pipeline.transcribe(
            np.concatenate(clips),
            batch_size=CLIPS,
            clip_timestamps=places,
            vad_filter=False,
            **_asked(arguments),
        )
        return [each.text.strip() for each in found]

    yield work


SIDES = {"here": here, "served": served, "there": there, "workers": workers, "batched": batched}
CASES = {
    "one": ("here", ("there",), 1.3),
    "together": ("served", ("workers", "batched"), 1.6),
    "memory": ("here", ("there",), 1.5),
}


def _faster_whisper(arguments: argparse.Namespace, **options: int) -> Any:
    compute = PRECISIONS[arguments.precision]
    return import_module("faster_whisper").WhisperModel(str(arguments.model), compute_type=compute, **options)


def _count(arguments: argparse.Namespace, case: str) -> int:
    return int(arguments.clips) if case == "one" else CLIPS


def _decoding(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {"temperature": [0], "beam": arguments.beam, "language": arguments.language}
    return asked | {"max_tokens": arguments.max_tokens, "timestamps": not arguments.max_tokens}


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {"beam_size": arguments.beam, "temperature": 0.0, "language": arguments.language}
    return asked | {"max_new_tokens": arguments.max_tokens or None, "without_timestamps": bool(arguments.max_tokens)}


def _text(found: tuple[Any, Any]) -> str:
    return "".join(each.text for each in found[0]).strip()


def serve_side(arguments: argparse.Namespace) -> None:
    """Work whenever a line comes, and say how long that took."""
    clips = [waveform for _, waveform in islice(recordings(arguments.folder), _count(arguments, arguments.case))]
    with SIDES[arguments.side](arguments) as work:
        serve(lambda: {"texts": work(clips), "version": _version()})


def _version() -> str:
    return "" if "faster_whisper" not in sys.modules else version("faster-whisper")


def _command(name: str, case: str, python: str, precision: str, beam: int) -> list[str]:
    own = [python, "-m", "benchmarks.whisper_speed", *sys.argv[1:], "--side", name, "--case", case]
    return [*own, "--precision", precision, "--beam", str(beam)]


def compare(arguments: argparse.Namespace, case: str, precision: str, beam: int) -> list[Any]:
    """The findings of a case: how many times as much the other side takes."""
    from benchmarks.measure import Bystanders, Finding, Setup, is_calm, median_ratio

    ours, theirs, bar = CASES[case]
    pythons = {ours: sys.executable, **dict.fromkeys(theirs, arguments.python)}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        sides = [
            stack.enter_context(Side(name, _command(name, case, python, precision, beam)))
            for name, python in pythons.items()
        ]
        warm = {side.name: side.work() for side in sides}  # memory: the first call is the one that counts
        while case != "memory" and sum(map(is_calm, rows)) < arguments.repeats and len(rows) < 3 * arguments.repeats:
            with Bystanders() as bystanders:
                found = {side.name: side.work() for side in sides}
            row = {f"{kind} {name}": round(each[kind], 3) for kind in ("cpu", "wall") for name, each in found.items()}
            rows.append({**row, "others %": bystanders.percent})
    setup = Setup.here(arguments.bundle, "benchmarks.whisper_speed")
    reference = f"faster-whisper {next(each['version'] for each in warm.values() if each['version'])}"
    same = [
        one.strip() == other.strip() for one, other in zip(warm[ours]["texts"], warm[theirs[0]]["texts"], strict=False)
    ]
    named = f"{precision}, beam {beam}"
    notes = [f"Beside {reference}; {sum(same)} of {len(same)} texts are the same, letter by letter."]
    if arguments.max_tokens == 0:
        notes.append(_errors(arguments, case, warm[ours]["texts"], warm[theirs[0]]["texts"]))
    if case == "memory":
        value = warm[ours]["peak"] / warm[theirs[0]]["peak"]
        row = {f"peak MB {name}": round(each["peak"]) for name, each in warm.items()}
        title = f"Peak memory, eight recordings in one call, {named}: share of {reference}'s"
        return [
            Finding(
                key=f"memory {named}",
                title=title,
                value=value,
                bar=bar,
                sense="at most",
                setup=setup,
                rows=[row],
                notes=notes,
            )
        ]
    findings = []
    for kind, meant in (("cpu", "processor seconds"), ("wall", "wall clock")):
        value, note = min(
            (median_ratio(rows, f"{kind} {name}", f"{kind} {ours}") for name in theirs), key=lambda each: each[0]
        )
        title = f"{case}, {named}, {meant}: {reference}'s ÷ ours"
        findings.append(
            Finding(
                key=f"{case} {named} {kind}",
                title=title,
                value=value,
                bar=bar,
                sense="at least",
                setup=setup,
                rows=rows,
                notes=[note, *notes],
            )
        )
    return findings


def _errors(arguments: argparse.Namespace, case: str, *sides: Texts) -> str:
    """How many words each side has wrong, of those that `metadata.jsonl` says were spoken."""
    from tritone.evaluate.normalize import Normalization, Normalizer
    from tritone.evaluate.score import score_utterance

    lines = (arguments.folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    spoken = {row["id"]: row["text"] for row in map(json.loads, lines)}
    references = [(id, spoken[id]) for id, _ in islice(recordings(arguments.folder), _count(arguments, case))]
    normalizer = Normalizer(Normalization(spelling="english"))

    def errors(texts: Texts) -> int:
        pairs = zip(references, texts, strict=True)
        return sum(score_utterance(id, text, found, normalizer).words.errors for (id, text), found in pairs)

    ours, theirs = map(errors, sides)
    return f"Words wrong: {ours} here, {theirs} there, of {errors([''] * len(references))}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=str)
    parser.add_argument("folder", type=Path, help="of recordings with metadata.jsonl, the first of which are taken")
    parser.add_argument("--model", type=Path, required=True, help="the CTranslate2 folder that the bundle was made of")
    parser.add_argument("--python", required=True, help="of an environment with faster-whisper and soundfile")
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {','.join(CASES)}")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--beams", default="1,5")
    parser.add_argument("--language", default="en")
    parser.add_argument("--clips", type=int, default=CLIPS, help="recordings that are taken one after the other")
    parser.add_argument("--max-tokens", type=int, default=0, help="of a window, without times, for random weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("docs/performance/whisper.json"))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    parser.add_argument("--beam", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.side:
        serve_side(arguments)
        return 0
    from benchmarks.measure import save, to_markdown

    findings = []
    for case in arguments.only.split(","):
        for precision in arguments.precisions.split(","):
            for beam in map(int, arguments.beams.split(",") if case != "memory" else ["1"]):
                for finding in compare(arguments, case, precision, beam):
                    findings.append(finding)
                    print(finding, flush=True)
    page = to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION)
    arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(each.is_met for each in findings) else 1


TITLE = "Whisper beside faster-whisper on a CPU"
INTRODUCTION = """\
Ratios from one run each: both sides on the same machine and cores with as many threads, in turn, on the same eight
recordings, greedy or with a beam at temperature 0, after a warm-up. Above 1 this project takes less. "others %" is how
much of the cores foreign processes took during a repeat. Written by
`python -m benchmarks.whisper_speed`."""


if __name__ == "__main__":
    sys.exit(main())
