"""What prefix beam search costs: beside an encoder, against other libraries, by beam and length, and in memory.

    python -m benchmarks.search [--rivals DIR] [--parts rivals,lm,encoder,growth,memory] [--bundle DIR] [--output FILE]

The log-probabilities are made up (`posteriors.py`): peaky ones as trained models give, and flat ones that are harder.
How to get the other libraries is told in `rivals.py`; without them their part is left out. The encoder is a random one
(`models/wenet.py`, needs the extra `export`); `--bundle` names one that was exported before. Prints every repeat, adds
its findings to FILE.json and the page beside it.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import numpy as np

from benchmarks.measure import ROOT, Cell, Finding, Setup, alternate, median_ratio, save, to_markdown
from benchmarks.posteriors import FLAT, PEAKY, LogProbs, Speech, ctc_log_prob, describe
from benchmarks.rivals import LM_WEIGHT, UNKNOWN, WORD_BONUS, Flashlight, Processes, Pyctcdecode, has, use_folder
from tritone.search.ctc.prefix_beam import PrefixBeam, compile_search, prefix_beam_search, top_tokens
from tritone.search.ngram.model import NgramModel
from tritone.search.scoring.scorer import Scorer

OUTPUT = ROOT / "docs" / "performance" / "search.json"
TITLE = "Prefix beam search"
MARKER = "<!-- figures: written by benchmarks.search, do not edit below -->"
BEAM, VOCAB, FRAMES, BATCH = 10, 5000, 250, 32
FEW = 8  # utterances for comparisons with slow libraries
CORES = 2
SHAPES = {"peaky": PEAKY, "flat": FLAT}


def batch_of(speech: Speech, shape: str, size: int, frames: int = FRAMES) -> LogProbs:
    return np.stack([speech.log_probs(frames, SHAPES[shape], seed)[0] for seed in range(size)])


def ours(batch: LogProbs, beam: int = BEAM, threads: int = 1, scorer: Scorer | None = None) -> list[list[int]]:
    """The tokens of the best hypotheses."""
    frames = np.full(len(batch), batch.shape[1])
    found = prefix_beam_search(batch, frames, blank_id=0, beam=beam, nbest=beam, scorer=scorer, threads=threads)
    return [[token.id for token in best.tokens] for best, *_ in found]


def against_encoder(speech: Speech, bundle: Path | None, repeats: int, setup: Setup) -> list[Finding]:
    """The time of the search as a share of an encoder's, on the same two cores."""
    from tritone.bundle import Bundle
    from tritone.runtime import open_graph

    with tempfile.TemporaryDirectory(prefix="search-benchmark-") as folder:
        if bundle is None:
            from benchmarks.models.wenet import ModelSize, random_bundle

            size = ModelSize(width=256, linear_units=2048, vocab_size=VOCAB)
            bundle = random_bundle(size, Path(folder) / "bundle").path
        opened = Bundle.open(bundle)
        graph = open_graph(opened.artifact("encoder", precision="fp32"), threads=CORES)
        samples = 10 * opened.manifest.sample_rate
        waveform = np.random.default_rng(0).normal(0, 0.1, (BATCH, samples)).astype(np.float32)
        inputs = {"waveform": waveform, "num_samples": np.full(BATCH, samples)}
        batches = {shape: batch_of(speech, shape, BATCH) for shape in SHAPES}
        sides: dict[str, Callable[[], object]] = {"encoder": lambda: graph(inputs, ["log_probs"])}
        for shape, batch in batches.items():
            sides[f"top tokens {shape}"] = lambda batch=batch: top_tokens(batch, BEAM, threads=CORES)  # type: ignore[misc]
            sides[f"search {shape}"] = lambda batch=batch: ours(batch, threads=CORES)  # type: ignore[misc]
        rows = alternate(sides, repeats)
    findings = []
    for shape, batch in batches.items():
        ratio, note = median_ratio(rows, f"search {shape}", "encoder")
        findings.append(
            Finding(
                key=f"encoder-{shape}",
                title=f"search of 32 ten-second utterances, {shape}, ÷ 12-layer encoder of width 256, seconds",
                value=ratio,
                bar=0.10,
                sense="at most",
                setup=setup,
                rows=_shown(rows),
                notes=[
                    note,
                    "Seconds; the search begins with (batch, frames, vocab) and ends with the 10 best as objects.",
                    f"{shape}: {_told(describe(batch))}.",
                ],
            )
        )
    return findings


def against_rivals(speech: Speech, repeats: int, setup: Setup) -> list[Finding]:
    """Speed and quality against other libraries, without a language model."""
    findings = []
    for shape in SHAPES:
        batch = batch_of(speech, shape, FEW)
        quality = {"tritone": _quality(batch, ours(batch))}
        one: dict[str, Callable[[], object]] = {"tritone": lambda batch=batch: ours(batch)}  # type: ignore[misc]
        both: dict[str, Callable[[], object]] = {"tritone": lambda batch=batch: ours(batch, threads=CORES)}  # type: ignore[misc]
        pools: list[Processes] = []
        bars = {"pyctcdecode": 5.0, "flashlight": 1.0}
        found: dict[str, Flashlight | Pyctcdecode] = {}
        if has("flashlight.lib.text.decoder"):
            found["flashlight"] = Flashlight(speech, BEAM)
        if has("pyctcdecode"):
            found["pyctcdecode"] = Pyctcdecode(speech, BEAM)
        for name, search in found.items():
            quality[name] = _quality(batch, [search(row) for row in batch])
            one[name] = lambda search=search, batch=batch: [search(row) for row in batch]  # type: ignore[misc]
            pools.append(Processes(search, list(batch), CORES))
            both[name] = pools[-1]
        tables = {"one thread": alternate(one, repeats), "both cores": alternate(both, repeats)}
        for pool in pools:
            pool.close()
        for name in found:
            for cores, rows in tables.items():
                ratio, note = median_ratio(rows, name, "tritone")
                findings.append(
                    Finding(
                        key=f"{name}-{shape}-{cores.replace(' ', '-')}",
                        title=f"{name} ÷ tritone, seconds, {shape}, {cores}, no language model",
                        value=ratio,
                        bar=bars[name],
                        sense="at least",
                        setup=setup,
                        rows=_shown(rows),
                        notes=[note, "Mean ln P(best hypothesis) over all its alignments: " + _told(quality) + "."],
                    )
                )
    return findings


def with_lm(speech: Speech, repeats: int, setup: Setup) -> list[Finding]:
    """Speed and word errors with a language model, against pyctcdecode with the same one."""
    if not (has("pyctcdecode") and has("kenlm")):
        return []
    return [_with_lm(speech, shape, repeats, setup) for shape in SHAPES]


def _with_lm(speech: Speech, shape: str, repeats: int, setup: Setup) -> Finding:
    batch = batch_of(speech, shape, FEW)
    texts = [speech.log_probs(FRAMES, SHAPES[shape], seed)[1] for seed in range(FEW)]
    with tempfile.TemporaryDirectory(prefix="search-benchmark-") as folder:
        arpa = Path(folder) / "3gram.arpa"
        speech.write_arpa(arpa)
        spellings = ["", *(label.replace("▁", " ") for label in speech.labels[1:])]
        spellings[1] = ""
        scorer = Scorer.build(
            spellings,
            lm=NgramModel.read(arpa),
            lm_weight=LM_WEIGHT,
            word_bonus=WORD_BONUS,
            unknown_penalty=UNKNOWN * math.log(10.0),
        )
        theirs = Pyctcdecode(speech, BEAM, arpa)
        said = {
            "tritone": [speech_text(speech, ids) for ids in ours(batch, scorer=scorer)],
            "pyctcdecode": [theirs.text(row) for row in batch],
            "tritone without": [speech_text(speech, ids) for ids in ours(batch)],
        }
        sides: dict[str, Callable[[], object]] = {
            "tritone": lambda: ours(batch, scorer=scorer),
            "pyctcdecode": lambda: [theirs.text(row) for row in batch],
        }
        rows = alternate(sides, repeats)
        processor = [{name: _processor_s(work) for name, work in sides.items()} for _ in rows]
    by_processor = median(row["pyctcdecode"] / row["tritone"] for row in processor)
    ratio, note = median_ratio(rows, "pyctcdecode", "tritone")
    errors = {name: _word_errors(texts, found) for name, found in said.items()}
    return Finding(
        key=f"pyctcdecode-{shape}-lm",
        title=f"pyctcdecode with KenLM ÷ tritone, seconds, {shape}, one thread, 3-gram",
        value=ratio,
        bar=5.0,
        sense="at least",
        setup=setup,
        rows=_shown(rows),
        notes=[
            note,
            f"By processor time, which other processes disturb less: {by_processor:.3g}.",
            f"Word errors per word said: {_told(errors)}. Weight {LM_WEIGHT}, word bonus {WORD_BONUS} in both.",
        ],
    )


def speech_text(speech: Speech, ids: Sequence[int]) -> str:
    return "".join(speech.labels[id] for id in ids).replace("▁", " ").strip()


def _word_errors(texts: Sequence[str], found: Sequence[str]) -> float:
    from rapidfuzz.distance import Levenshtein

    errors = sum(Levenshtein.distance(a.split(), b.split()) for a, b in zip(texts, found, strict=True))
    return errors / sum(len(text.split()) for text in texts)


def growth(speech: Speech, repeats: int, setup: Setup) -> list[Finding]:
    """How cost grows with frames and with the beam."""
    findings = []
    for shape in SHAPES:
        long = speech.log_probs(4000, SHAPES[shape], 0)[0]
        rows: list[dict[str, Cell]] = []
        for frames in (250, 500, 1000, 2000, 4000):
            ids, values = top_tokens(long[:frames], BEAM)
            rows.append({"frames": frames, "µs a frame": _microseconds(ids, values, BEAM, repeats)})
        findings.append(
            Finding(
                key=f"frames-{shape}",
                title=f"cost of a frame in 4000 frames ÷ in 250, {shape}",
                value=float(rows[-1]["µs a frame"]) / float(rows[0]["µs a frame"]),
                bar=1.25,
                sense="at most",
                setup=setup,
                rows=rows,
                notes=[f"Beam {BEAM}, one thread, best of {repeats}, without `top_tokens`; nothing is ever decided."],
            )
        )
        rows = []
        for beam in (5, 10, 20, 40, 80):
            ids, values = top_tokens(long[:1000], beam, threads=1)
            top = 1e3 * min(_seconds(lambda: top_tokens(long[:1000], beam, threads=1)) for _ in range(repeats))  # noqa: B023
            prefixes = _microseconds(ids, values, beam, repeats)
            rows.append({"beam": beam, "µs a frame": top + prefixes, "top tokens": top, "prefixes": prefixes})
        findings.append(
            Finding(
                key=f"beam-{shape}",
                title=f"cost of a frame with beam 80 ÷ with beam 5, {shape} (16 would be linear)",
                value=float(rows[-1]["µs a frame"]) / float(rows[0]["µs a frame"]),
                bar=16.0,
                sense="at most",
                setup=setup,
                rows=rows,
                notes=[
                    f"1000 frames, {VOCAB} tokens, one thread, best of {repeats}. Prefixes alone: "
                    f"{float(rows[-1]['prefixes']) / float(rows[0]['prefixes']):.3g}."
                ],
            )
        )
    return findings


def _microseconds(ids: np.ndarray, values: np.ndarray, beam: int, repeats: int) -> float:
    times = [_seconds(lambda: PrefixBeam(beam=beam, blank_id=0, history=None).advance(ids, values))]
    times += [
        _seconds(lambda: PrefixBeam(beam=beam, blank_id=0, history=None).advance(ids, values)) for _ in range(repeats)
    ]
    return 1e6 * min(times) / len(ids)


def memory(setup: Setup) -> list[Finding]:
    """The memory of one stream over an hour, in steps of 16 frames."""
    speech = Speech(500, words=300)
    stream, rows, most = PrefixBeam(beam=BEAM, blank_id=0), [], 0
    frames, minutes = 0, 0
    block = 1500
    while minutes < 60:
        shape = SHAPES["flat" if minutes % 2 else "peaky"]
        ids, values = top_tokens(speech.log_probs(block, shape, minutes)[0], BEAM)
        start = perf_counter()
        for at in range(0, block, 16):
            stream.advance(ids[at : at + 16], values[at : at + 16])
            most = max(most, stream.num_bytes)
        spent = perf_counter() - start
        frames, minutes = frames + block, minutes + 1
        if minutes in (5, 15, 30, 45, 60):
            tokens = len(stream.hypotheses(1)[0].tokens)
            rows.append(
                {"minutes": minutes, "tokens": tokens, "KB": stream.num_bytes / 1e3, "µs a frame": 1e6 * spent / block}
            )
    grown = 1e3 * (float(rows[-1]["KB"]) - float(rows[1]["KB"])) / (int(rows[-1]["tokens"]) - int(rows[1]["tokens"]))
    return [
        Finding(
            key="memory",
            title="bytes a stream grows for each token, from minute 15 to 60",
            value=grown,
            bar=32.0,
            sense="at most",
            setup=setup,
            rows=rows,
            notes=[
                f"The most at any time: {most / 1e3:.0f} KB. Peaky and flat minutes in turn, 25 frames a second, "
                f"beam {BEAM}, steps of 16 frames.",
                "Settled tokens take 16 bytes, at most twice that while their array is half full; whoever calls "
                "`take_settled` keeps them elsewhere.",
            ],
        )
    ]


def _quality(batch: LogProbs, found: Sequence[Sequence[int]]) -> float:
    return float(np.mean([ctc_log_prob(row, tokens) for row, tokens in zip(batch, found, strict=True)]))


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _processor_s(work: Callable[[], object]) -> float:
    start = thread_time()
    work()
    return thread_time() - start


def _shown(rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, Cell]]:
    return [{name: _digits(value) for name, value in row.items()} for row in rows]


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _told(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def write(findings: Sequence[Finding], output: Path) -> None:
    """Add findings to the JSON file and renew the figures of the page beside it; what stands above them stays."""
    held = save(findings, output)
    page = output.with_suffix(".md")
    above = page.read_text(encoding="utf-8").split(MARKER)[0] if page.is_file() else f"# {TITLE}\n\n"
    figures = to_markdown(held, "Figures", "").replace("\n## ", "\n### ").replace("# Figures", "## Figures", 1)
    page.write_text(f"{above}{MARKER}\n\n{figures}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", type=Path, help="folder where other libraries are installed")
    parser.add_argument("--parts", default="rivals,lm,encoder,growth,memory", help="some of these (default: all)")
    parser.add_argument("--bundle", type=Path, help="the encoder, of a vocabulary of 5000 (default: a random one)")
    parser.add_argument("--repeats", type=int, default=3, help="of every comparison (default: 3)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    arguments = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, usable[:CORES])
    use_folder(arguments.rivals)
    start = perf_counter()
    compile_search()
    print(f"compiled or loaded the search in {perf_counter() - start:.1f} s", flush=True)
    speech = Speech(VOCAB)
    setup = Setup.here("made up", "benchmarks.search")
    parts: dict[str, Callable[[], list[Finding]]] = {
        "rivals": lambda: against_rivals(speech, arguments.repeats, setup),
        "lm": lambda: with_lm(speech, arguments.repeats, setup),
        "encoder": lambda: against_encoder(speech, arguments.bundle, arguments.repeats, setup),
        "growth": lambda: growth(speech, arguments.repeats, setup),
        "memory": lambda: memory(setup),
    }
    findings: list[Finding] = []
    for name in arguments.parts.split(","):
        found = parts[name]()
        for finding in found:
            print(finding, flush=True)
        if not found:
            print(f"{name}: left out, nothing to compare with is installed; see benchmarks/rivals.py")
        write(found, arguments.output)
        findings += found
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
