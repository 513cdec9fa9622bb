"""Score a speaker model: error rates on the public trials, or on the development speakers that training left out.

    python -m training.speaker.score --bundle demo-speaker --data ../shared/data
    python -m training.speaker.score --bundle demo-speaker --json src/tritone/bundles/demo-speaker/evaluation.json
    python -m training.speaker.score --bundle /tmp/short --packs training/data/speaker/*.zip [--mean-vec mean_vec.npy]

Audio through the bundle's own pipeline, scores are cosines. What a setting is chosen by are the development speakers,
and a run that was trained on them (`--train-on-dev`) has no such figures. Intervals are 95 % bootstrap intervals over
speakers: with six or ten of them they are wide, and still they know nothing of other microphones and rooms.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

import tritone
from training.corpus import SAMPLE_RATE
from training.speaker.material import is_development, make_material
from training.speaker.verification import VerificationSet, dev_sets
from tritone.pipelines.embedder import Embedder
from tritone.speakers.archive import Vectors
from tritone.speakers.metrics import Cost, ErrorCurve, Figure, evaluate
from tritone.speakers.score_file import Scores
from tritone.speakers.scoring import score_trials
from tritone.speakers.trials import Trials, read_trials

CORPORA = ("an4", "librispeech_mini")  # those with a list of trials
TITLES = {"an4": "AN4 test", "librispeech_mini": "LibriSpeech test-other, part"}
COSTS = (Cost(0.01), Cost(0.05))


@dataclass(frozen=True, kw_only=True)
class TrialSet:
    """`trials` of `waveforms` (samples,) float32 by name, and whose each is."""

    trials: Trials
    waveforms: Mapping[str, np.ndarray]
    speakers: Mapping[str, str]


def public_set(folder: Path) -> TrialSet:
    """The trials of a corpus folder and the recordings that they name.

    Raises:
        ValueError: a recording is not there, or not of the test part.
    """
    trials = read_trials(folder / "trials_test.txt")
    named = {*trials.enrol_names, *trials.test_names}
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    by_path = {row["path"]: row for row in rows if row["id"] in named and row["split"] == "test"}
    waveforms = {}
    with tarfile.open(folder / f"{folder.name}.tar") as archive:
        for member in archive:
            row = by_path.get(member.name.removeprefix("./"))
            stream = archive.extractfile(member) if row else None
            if row is not None and stream is not None:
                waveform, rate = soundfile.read(io.BytesIO(stream.read()), dtype="float32")
                if rate != SAMPLE_RATE:
                    raise ValueError(f"{folder}: {row['id']} has {rate} Hz, not {SAMPLE_RATE}")
                waveforms[row["id"]] = waveform
    if absent := sorted(named - set(waveforms)):
        raise ValueError(f"{folder}: {len(absent)} recordings of the trials are not in the test part: {absent[0]}, ...")
    return TrialSet(
        trials=trials, waveforms=waveforms, speakers={row["id"]: row["speaker"] for row in by_path.values()}
    )


def development_set(made: VerificationSet) -> TrialSet:
    """The same of what training evaluates with."""
    names = tuple(f"{speaker}/{place}" for place, speaker in enumerate(made.speakers))
    first, second = made.pairs.astype(np.int32).T
    return TrialSet(
        trials=Trials(enrol_names=names, test_names=names, enrol=first, test=second, targets=made.targets),
        waveforms={
            name: waveform.numpy().astype(np.float32) / 32768.0
            for name, waveform in zip(names, made.waveforms, strict=True)
        },
        speakers=dict(zip(names, made.speakers, strict=True)),
    )


def score(embedder: Embedder, made: TrialSet, mean: np.ndarray | None = None) -> Scores:
    """Cosines of a set's trials; `mean` (dim,) is subtracted from the embeddings first."""
    names = tuple(made.waveforms)
    vectors = Vectors(names, embedder.embed([made.waveforms[name] for name in names], SAMPLE_RATE))
    return Scores(made.trials, score_trials(made.trials, vectors, mean=mean).values)


def errors_at(scores: Scores, threshold: float) -> tuple[float, float]:
    """Shares of targets refused and of others accepted at a threshold."""
    targets = scores.trials.targets
    assert targets is not None
    return float((scores.values[targets] <= threshold).mean()), float((scores.values[~targets] > threshold).mean())


def table(sets: Mapping[str, TrialSet], scored: Mapping[str, Scores], threshold: float | None) -> list[str]:
    """A table in Markdown, a row for each set."""
    head = ["trials", "pairs (same + other)", "speakers", "EER %", "at cosine", *(f"minDCF, {cost}" for cost in COSTS)]
    if threshold is not None:
        head.append(f"misses, false alarms at {threshold:g}")
    rows = [head, ["---"] * len(head)]
    for name, scores in scored.items():
        found = evaluate(scores, COSTS, speakers=sets[name].speakers)
        row = [
            name,
            f"{scores.trials.num_targets:,} + {scores.trials.num_nontargets:,}",
            str(len(set(sets[name].speakers.values()))),
            _with_interval(found.eer, 100.0, 2),
            f"{found.eer.threshold:.3f}",
            *(_with_interval(found.min_dcfs[cost], 1.0, 3) for cost in COSTS),
        ]
        if threshold is not None:
            row.append(", ".join(f"{100 * share:.2f} %" for share in errors_at(scores, threshold)))
        rows.append(row)
    return [f"| {' | '.join(row)} |" for row in rows]


def evaluation(sets: Mapping[str, TrialSet], scored: Mapping[str, Scores]) -> dict[str, Any]:
    """What `evaluation.json` of a bundle holds, see `tritone.bundle.evaluation`; rates are fractions."""
    rows = []
    for name, scores in scored.items():
        found = evaluate(scores, COSTS, speakers=sets[name].speakers)
        costs = [
            {"p_target": cost.p_target, "c_miss": cost.c_miss, "c_fa": cost.c_fa, **_fields(found.min_dcfs[cost])}
            for cost in COSTS
        ]
        rows.append(
            {
                "name": TITLES.get(name, name),
                "trials": f"{name}/trials_test.txt",
                "targets": scores.trials.num_targets,
                "nontargets": scores.trials.num_nontargets,
                "speakers": len(set(sets[name].speakers.values())),
                "eer": _fields(found.eer),
                "min_dcf": costs,
                "level": found.level,
                "resampled": found.resampled,
            }
        )
    return {"measured_by": "python -m training.speaker.score", "sets": rows}


def _fields(figure: Figure) -> dict[str, Any]:
    bounds = None if figure.interval is None else [round(bound, 6) for bound in figure.interval]
    return {"value": round(figure.value, 6), "threshold": round(figure.threshold, 5), "interval": bounds}


def pooled(scored: Sequence[Scores]) -> ErrorCurve:
    """The curve of the trials of several sets."""
    targets = [scores.trials.targets for scores in scored if scores.trials.targets is not None]
    return ErrorCurve.of(np.concatenate(targets), np.concatenate([scores.values for scores in scored]))


def _with_interval(figure: Figure, scale: float, digits: int) -> str:
    text = f"{scale * figure.value:.{digits}f}"
    if figure.interval is None:
        return text
    low, high = (scale * bound for bound in figure.interval)
    return f"{text} ({low:.{digits}f} … {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-speaker")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--packs", type=Path, nargs="+", help="score the development speakers of these packs instead")
    parser.add_argument("--mean-vec", type=Path, help="a vector to subtract from every embedding")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures of the public trials there")
    arguments = parser.parse_args()
    if arguments.json is not None and arguments.packs is not None:
        parser.error("--json is for the public trials; with --packs there are others")

    embedder = tritone.load(arguments.bundle)
    if arguments.packs is None:
        sets = {name: public_set(arguments.data / name) for name in CORPORA}
    else:
        # Voices at their own speed, and no rooms: nothing is trained here.
        material = make_material(arguments.packs, speeds=(1.0,), rooms=1)
        held = [place for place, each in enumerate(material.recordings) if is_development(each, hold_out=True)]
        sets = {name: development_set(made) for name, made in dev_sets(material, held).items()}
    mean = None if arguments.mean_vec is None else np.load(arguments.mean_vec, allow_pickle=False)
    scored = {name: score(embedder, made, mean) for name, made in sets.items()}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(evaluation(sets, scored), indent=2) + "\n", encoding="utf-8")
    part = embedder.bundle.manifest.embedding
    for line in table(sets, scored, part.threshold if part else None):
        print(line)
    together = pooled(list(scored.values())).eer()
    print(f"all of them: EER {100 * together.value:.2f} %, at cosine {together.threshold:.3f}")


if __name__ == "__main__":
    main()
