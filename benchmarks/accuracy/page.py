"""Texts of the accuracy benchmark to figures, tables and a page.

rows (texts of a case)  ->  report: errors, intervals, differences  ->  docs/performance/accuracy.md
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.accuracy.rows import BEAM, CHUNK_SIZE, SEARCHES, SHIPPED_LEFT, Case, Corpus
from tritone.evaluate.bootstrap import paired_difference, rate_interval
from tritone.evaluate.normalize import Normalizer
from tritone.evaluate.score import UtteranceScore, pool, score_utterance
from tritone.report.stamp import Stamp
from tritone.report.table import Cell, Column, Table
from tritone.search.options import SearchOptions

Row = Mapping[str, Any]
Key = tuple[str, str, int | None, str]

FRAME_MS = 40

INTRODUCTION = """\
Word error rates of the demo model (`training/demo-asr`, U2++ conformer, 3.4 M parameters) on the public test sets, by
search, precision and history. Measured by

```sh
{command}
```

through the pipelines that serve, in process; every wrong text is in [accuracy.json.gz](accuracy.json.gz). Cells are
"WER % (errors)". Streams advance in chunks of {chunk} frames ({chunk_ms} ms); "left" is how many past chunks a step
sees, {shipped} in the shipped bundle. Beam {beam}. Intervals: 95 %, bootstrap over utterances. p-values: permutation
test on the same utterances, not corrected for the number of rows.
"""

WEIGHTS_CHOSEN = """\
Chosen once on AN4's development part (102 utterances, 573 words, other speakers), fp32, whole utterances, by `python -m
benchmarks.accuracy --tune`: LM weight and word bonus for prefix beam search, the weights of the decoders for rescoring
without a language model; rescoring with one takes both as they are. They are used for every set, precision and mode.
What counted was the mean of word errors over a trial and its neighbours in the grid; all trials are in
[accuracy-weights.json](accuracy-weights.json). No test text was used for them.
"""


def report(rows: Sequence[Row], sets: Sequence[Corpus], stamp: Stamp, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Score the rows: errors, intervals, differences from greedy search and from fp32. JSON-ready."""
    by_name = {each.name: each for each in sets}
    scores = {_key(row["case"]): _scores(row["texts"], by_name[row["case"].set]) for row in rows}
    return {
        "stamp": asdict(stamp),
        "sets": [
            {
                "name": each.name,
                "title": each.title,
                "note": each.note,
                "lm": f"{each.lm.parent.name}/{each.lm.name}",
                "utterances": len(each.utterances),
                "words": sum(len(spoken.text.split()) for spoken in each.utterances),
            }
            for each in sets
        ],
        "weights": dict(weights),
        "rows": [_figures(row, scores) for row in rows],
    }


def to_markdown(content: Mapping[str, Any]) -> str:
    """The page of a report."""
    stamp = Stamp(**content["stamp"])
    introduction = INTRODUCTION.format(
        command=stamp.command, chunk=CHUNK_SIZE, chunk_ms=CHUNK_SIZE * FRAME_MS, shipped=SHIPPED_LEFT, beam=BEAM
    )
    parts = ["# Accuracy of the demo model", "", introduction]
    for corpus in content["sets"]:
        rows = [row for row in content["rows"] if row["set"] == corpus["name"]]
        parts += [
            f"## {corpus['title']}",
            "",
            f"{corpus['utterances']} utterances, {corpus['words']} words; language model `training/{corpus['lm']}`.",
            *textwrap.wrap(corpus["note"], 120),
            "",
        ]
        for precision in dict.fromkeys(row["precision"] for row in rows):
            parts.append(_matrix(precision, [row for row in rows if row["precision"] == precision]).to_markdown())
        shown = [row for row in rows if row["left_chunks"] in (None, SHIPPED_LEFT)]
        if any(row["errors"] for row in shown):
            parts.append(_against_greedy([row for row in shown if row["precision"] == "fp32"]).to_markdown())
            if others := [row for row in shown if row["against_fp32"]]:
                parts.append(_against_fp32(others).to_markdown())
    parts += ["## Weights", "", _weights(content["weights"])]
    parts += ["## Conditions", "", "| | |", "| --- | --- |"]
    parts += [f"| {name} | {text} |" for name, text in stamp.rows()]
    return "\n".join(parts).rstrip() + "\n"


def _key(case: Case) -> Key:
    return case.set, case.precision, case.left_chunks, case.search


def _scores(texts: Mapping[str, str], corpus: Corpus) -> list[UtteranceScore]:
    normalizer = Normalizer()
    return [score_utterance(each.id, each.text, texts[each.id], normalizer) for each in corpus.utterances]


def _figures(row: Row, scores: Mapping[Key, Sequence[UtteranceScore]]) -> dict[str, Any]:
    case, options = row["case"], row["options"]
    found = scores[_key(case)]
    words = pool(each.words for each in found)
    return {
        "set": case.set,
        "precision": case.precision,
        "mode": case.mode,
        "left_chunks": case.left_chunks,
        "search": case.search,
        "options": _told(options),
        "wer": words.rate,
        "errors": words.errors,
        "words": words.reference_length,
        "substitutions": words.substitutions,
        "deletions": words.deletions,
        "insertions": words.insertions,
        "interval": rate_interval([each.words.errors for each in found], _lengths(found)),
        "against_greedy": _difference(scores, case, Case(**{**asdict(case), "search": "greedy"})),
        "against_fp32": _difference(scores, case, Case(**{**asdict(case), "precision": "fp32"})),
        "wrong": {each.id: each.hypothesis for each in found if not each.exact},
        "wall_s": row["wall_s"],
    }


def _told(options: SearchOptions) -> dict[str, Any]:
    """The options that say something about this search."""
    names = ["mode"]
    if options.mode != "greedy":
        names += ["beam", "lm_weight", "word_bonus"]
    if options.mode == "rescoring":
        names += ["ctc_weight", "reverse_weight"]
    return {name: getattr(options, name) for name in names}


def _difference(scores: Mapping[Key, Sequence[UtteranceScore]], case: Case, baseline: Case) -> dict[str, Any] | None:
    if _key(case) == _key(baseline) or _key(baseline) not in scores:
        return None
    theirs, ours = scores[_key(baseline)], scores[_key(case)]
    before, after = ([each.words.errors for each in side] for side in (theirs, ours))
    found = paired_difference(before, after, _lengths(ours))
    changed = sum(one.hypothesis != other.hypothesis for one, other in zip(theirs, ours, strict=True))
    return {"delta": found.delta, "interval": found.interval, "p_value": found.p_value, "changed": changed}


def _lengths(scores: Sequence[UtteranceScore]) -> list[int]:
    return [each.words.reference_length for each in scores]


def _matrix(precision: str, rows: Sequence[Row]) -> Table:
    """Modes down, searches across."""
    searches = [search for search in SEARCHES if any(row["search"] == search for row in rows)]
    cells: dict[str, dict[str, Cell]] = {}
    for row in rows:
        line = cells.setdefault(row["mode"], {"mode": row["mode"]})
        line[row["search"]] = f"{100 * row['wer']:.2f} ({row['errors']})"
    columns = [Column("mode", "mode"), *(Column(search, search, align="right") for search in searches)]
    return Table(precision, columns, list(cells.values()))


def _against_greedy(rows: Sequence[Row]) -> Table:
    columns = [
        Column("mode", "mode"),
        Column("search", "search"),
        Column("wer", "WER", digits=2, unit="%", scale=100),
        Column("interval", "95 % interval", align="right"),
        Column("kinds", "S / D / I", align="right"),
        Column("delta", "points against greedy", align="right"),
        Column("p", "p", digits=3),
    ]
    lines: list[dict[str, Cell]] = []
    for row in rows:
        low, high = row["interval"]
        line: dict[str, Cell] = {
            "mode": row["mode"],
            "search": row["search"],
            "wer": row["wer"],
            "interval": f"{100 * low:.2f} … {100 * high:.2f}",
            "kinds": f"{row['substitutions']} / {row['deletions']} / {row['insertions']}",
        }
        if row["against_greedy"]:
            line |= {"delta": _points(row["against_greedy"]), "p": row["against_greedy"]["p_value"]}
        lines.append(line)
    return Table("Against greedy search, fp32", columns, lines)


def _against_fp32(rows: Sequence[Row]) -> Table:
    columns = [
        Column("precision", "precision"),
        Column("mode", "mode"),
        Column("search", "search"),
        Column("wer", "WER", digits=2, unit="%", scale=100),
        Column("delta", "points against fp32", align="right"),
        Column("p", "p", digits=3),
        Column("changed", "other texts"),
    ]
    lines: list[dict[str, Cell]] = []
    for row in rows:
        found = row["against_fp32"]
        told: dict[str, Cell] = {name: row[name] for name in ("precision", "mode", "search", "wer")}
        lines.append(told | {"delta": _points(found), "p": found["p_value"], "changed": found["changed"]})
    return Table("Against fp32", columns, lines)


def _points(difference: Mapping[str, Any]) -> str:
    low, high = difference["interval"]
    return f"{100 * difference['delta']:+.2f} ({100 * low:+.2f} … {100 * high:+.2f})"


def _weights(weights: Mapping[str, Mapping[str, float]]) -> str:
    columns = [Column("search", "search")]
    columns += [Column(name, name) for name in ("lm_weight", "word_bonus", "ctc_weight", "reverse_weight")]
    rows: list[dict[str, Cell]] = [{"search": search, **chosen} for search, chosen in weights.items()]
    return f"{WEIGHTS_CHOSEN}\n{Table('', columns, rows).to_markdown()}"
