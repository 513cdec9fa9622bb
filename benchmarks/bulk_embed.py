"""`tritone embed` on real recordings beside the bare network on the same ones, as a ratio from one run.

    python -m benchmarks.bulk_embed --data DIR [--bundle DIR|demo-speaker] [--size ecapa_c512] [--count 3000] [--flac]

`--data` has one folder for each corpus: a tar of audio and metadata.jsonl with `path`, the path inside the tar. The
command is timed as people run it: starting, reading and decoding files, computing, writing archives. The bare network
is the acoustic graph on features that lie ready, in the calls that the command makes of the same recordings, at once.
Both take turns. Without `--bundle` it is a network of published size with random weights (needs the extra `export`).
"""

import argparse
import json
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from benchmarks.measure import Bystanders, Finding, Setup, median_ratio, save, text_row, timed, to_markdown
from benchmarks.models.random_bundle import RANDOM_BUNDLES
from benchmarks.published import TRITONE
from tritone.audio import read_audio
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.loadtest.workload.embeddings import cosine
from tritone.pipelines.embedder import Embedder
from tritone.pipelines.graphs.batching import BatchLimits, plan_batches
from tritone.runtime import Graph, open_graph
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array
from tritone.speakers.archive import read_vectors

CORPORA = ("an4", "librispeech_mini", "speech_commands")  # 16 kHz
BAR = 0.85  # of the bare network's throughput
MAX_AUDIO_BYTES = 2**31
ALIKE = 0.9999
TITLE = "Embedding a corpus"
INTRODUCTION = "`tritone embed` as a whole command beside its bare network on the same recordings, in turn."

Call = tuple[Sequence[int], Mapping[str, Array]]  # which recordings, and what is fed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpora")
    parser.add_argument("--corpora", default=",".join(CORPORA), help=f"folders there (default: {','.join(CORPORA)})")
    parser.add_argument("--count", type=int, default=3000, help="recordings, drawn at random (default: 3000)")
    parser.add_argument("--bundle", help="a folder, or a shipped bundle's name; random weights if not given")
    parser.add_argument("--size", default="ecapa_c512", help="of random weights, see benchmarks/models/speaker.py")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--flac", action="store_true", help="rewrite compressed recordings as FLAC first")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bar", type=float, default=BAR)
    parser.add_argument("--output", type=Path, help="JSON file; a page is written beside it")
    parser.add_argument("--bundles", type=Path, default=RANDOM_BUNDLES)
    given = parser.parse_args()
    if given.bundle:
        bundle = Bundle.open(given.bundle)
    else:
        from benchmarks.models.speaker import kept_speaker

        bundle = kept_speaker(given.size, given.bundles, given.runtime, given.precision)
    with tempfile.TemporaryDirectory(prefix="tritone-bulk-") as folder:
        paths = unpack(given.data, given.corpora.split(","), given.count, Path(folder) / "audio")
        if given.flac:
            paths = [_as_flac(path) for path in paths]
        setup = Setup.here(bundle.manifest.name, "benchmarks.bulk_embed")
        finding = embed_over_bare(bundle, paths, Path(folder), setup, given)
    print(finding, flush=True)
    if given.output is not None:
        page = to_markdown(save([finding], given.output), TITLE, INTRODUCTION)
        given.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if finding.is_met else 1


def unpack(data: Path, corpora: Sequence[str], count: int, folder: Path, seed: int = 1) -> list[Path]:
    """Write so many recordings of the corpora to `folder`, drawn at random but always the same ones.

    Raises:
        SystemExit: there are not so many.
    """
    members: list[tuple[Path, str]] = []
    for corpus in corpora:
        lines = (data / corpus / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
        members += [(data / corpus / f"{corpus}.tar", json.loads(line)["path"]) for line in lines]
    if len(members) < count:
        raise SystemExit(f"{data} has {len(members)} recordings in {', '.join(corpora)}, not {count}")
    chosen = sorted(np.random.default_rng(seed).permutation(len(members))[:count].tolist())
    wanted: dict[Path, list[str]] = {}
    for place in chosen:
        wanted.setdefault(members[place][0], []).append(members[place][1])
    paths: list[Path] = []
    for tar, names in wanted.items():
        place = folder / tar.stem
        with tarfile.open(tar) as archive:
            room = MAX_AUDIO_BYTES - sum(archive.getmember(name).size for name in names)
            if room < 0:
                raise SystemExit(f"{tar}: more than {MAX_AUDIO_BYTES} bytes of audio are not unpacked")
            archive.extractall(place, [archive.getmember(name) for name in names], filter="data")
        paths += [place / name for name in names]
    order = np.random.default_rng(seed).permutation(len(paths))  # a corpus's lengths are alike; mixed is the usual case
    return [paths[place] for place in order]


def _as_flac(path: Path) -> Path:
    """Most corpora have FLAC or WAV; Opus takes some five times as long to decode."""
    if path.suffix in (".flac", ".wav"):
        return path
    samples, rate = soundfile.read(path)
    soundfile.write(path.with_suffix(".flac"), samples, rate)
    return path.with_suffix(".flac")


def embed_over_bare(
    bundle: Bundle, paths: Sequence[Path], folder: Path, setup: Setup, given: argparse.Namespace
) -> Finding:
    """Throughput of the command, divided by that of the bare network."""
    rate = bundle.manifest.sample_rate
    waveforms = [read_audio(path, rate) for path in paths]
    seconds = sum(map(len, waveforms)) / rate
    (folder / "wav.scp").write_text(
        "".join(f"{place:05d} {path}\n" for place, path in enumerate(paths)), encoding="utf-8"
    )
    chosen: dict[str, Any] = {"runtime": given.runtime, "precision": given.precision}
    command = [TRITONE, "embed", "--wavscp", str(folder / "wav.scp"), "--model"]
    command += [str(bundle.path), "--runtime", given.runtime, "--precision", given.precision, "--device", given.device]

    graph, calls, what = _bare(bundle, waveforms, chosen, given.device)
    crew = Crew(graph.concurrency)
    found: dict[int, Array] = {}

    def bare(call: Call) -> None:
        found.update(zip(call[0], graph(call[1], ["embeddings"])[0], strict=True))

    def embed(turn: int) -> None:
        output = folder / f"out-{turn}"
        done = subprocess.run([*command, "--output", str(output)], capture_output=True, encoding="utf-8")
        if done.returncode:
            raise SystemExit(f"the command failed: {done.stderr[-2000:]}")

    bare(calls[0])  # warm
    rows = []
    for turn in range(given.repeats):
        with Bystanders() as bystanders:
            bare_s = timed(partial(crew.map, bare, calls))
            embed_s = timed(partial(embed, turn))
        row = {"bare s": bare_s, "embed s": embed_s, "bare utt/s": len(paths) / bare_s}
        rows.append(row | {"embed utt/s": len(paths) / embed_s, "ratio": bare_s / embed_s})
        rows[-1]["others %"] = bystanders.percent
        print(text_row(rows[-1]), flush=True)
    written = {key: row for archive in sorted((folder / "out-0").glob("*.scp")) for key, row in _vectors(archive)}
    least = min(cosine(written[f"{place:05d}"], found[place]) for place in range(len(paths)))
    if least < ALIKE:
        raise SystemExit(f"the command writes other embeddings than the bare network gives: least cosine {least:.5f}")
    ratio, basis = median_ratio(rows, "bare s", "embed s")
    return Finding(
        key=f"bulk-{bundle.manifest.name}-{given.device}-{given.runtime}-{given.precision}",
        title=f"throughput of `tritone embed` ÷ bare network, {bundle.manifest.name}",
        value=ratio,
        bar=given.bar,
        sense="at least",
        setup=setup,
        rows=rows,
        notes=[
            basis,
            f"{len(paths)} recordings of {min(map(len, waveforms)) / rate:.2f} to "
            f"{max(map(len, waveforms)) / rate:.2f} s, {seconds:.0f} s of audio ({_formats(paths)}); {given.runtime} "
            f"{given.precision} on {given.device}.",
            f"Bare: {what}; {len(calls)} calls, {crew.size} at once.",
            f"All embeddings were compared: least cosine {least:.6f}.",
        ],
    )


def _bare(
    bundle: Bundle, waveforms: Sequence[Waveform], chosen: Mapping[str, Any], device: str
) -> tuple[Graph, list[Call], str]:
    """The network's graph, and what it is fed in each call: the plan of the command, pile by pile."""
    encoder = bundle.artifacts("encoder", **chosen)[0]
    limits = BatchLimits.for_device(device, bundle.num_bytes(encoder), like_even=True)
    ready: list[Call] = []
    for pile in _piles(waveforms, bundle.manifest.sample_rate):
        batches = plan_batches(
            [len(waveforms[index]) for index in pile],
            limits,
            sample_rate=bundle.manifest.sample_rate,
            min_samples=bundle.manifest.encoder.min_samples,
            equal=bundle.manifest.encoder.equal_lengths,
        )
        for batch in batches:
            members = [pile[index] for index in batch.indices]
            block = np.zeros((len(members), batch.num_samples), np.float32)
            for row, index in zip(block, members, strict=True):
                row[: len(waveforms[index])] = waveforms[index]
            counts = np.array([len(waveforms[index]) for index in members], np.int64)
            ready.append((members, {"waveform": block, "num_samples": counts}))
    if not bundle.has("acoustic"):
        graph = open_graph(bundle.file(encoder.files[0]), device)
        return graph, ready, "the whole graph on waveforms that lie ready (the bundle has no stages)"
    features, acoustic = (
        open_graph(bundle.file(bundle.artifacts(role, **chosen)[0].files[0]), device)
        for role in ("features", "acoustic")
    )
    calls: list[Call] = [
        (members, {"features": features(feed, ["features"])[0], "num_samples": feed["num_samples"]})
        for members, feed in ready
    ]
    return acoustic, calls, "the acoustic graph on features that lie ready"


def _piles(waveforms: Sequence[Waveform], rate: int) -> list[list[int]]:
    piles: list[list[int]] = [[]]
    waiting = 0
    for index, waveform in enumerate(waveforms):
        piles[-1].append(index)
        waiting += len(waveform)
        if len(piles[-1]) >= Embedder.batch_inputs or waiting >= Embedder.batch_s * rate:
            piles.append([])
            waiting = 0
    return [pile for pile in piles if pile]


def _formats(paths: Sequence[Path]) -> str:
    counts = Counter(path.suffix.removeprefix(".") for path in paths)
    return ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())


def _vectors(archive: Path) -> list[tuple[str, Array]]:
    vectors = read_vectors(archive)
    return list(zip(vectors.keys, vectors.matrix, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
