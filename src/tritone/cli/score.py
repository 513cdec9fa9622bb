"""`tritone score`: trials to scores, and scores to error rates."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tritone.cli.shared.outputs import check_outputs
from tritone.report.table import Column, Table, visible

if TYPE_CHECKING:
    from tritone.speakers.metrics import Evaluation, Figure

DEFAULT_TOP_N = 100  # as tritone.speakers.scoring has it, which loads numpy


def score(
    trials: Annotated[
        Path | None,
        typer.Option(help="Trials: 'enrol test target|nontarget', '1|0 enrol test', or 'enrol test' a line."),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(metavar="SCP", help="Their vectors: an .scp, an .ark, or a folder of `tritone embed`."),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Scores of trials made before: only count errors, or with --cohort normalise them."),
    ] = None,
    enroll: Annotated[
        Path | None,
        typer.Option(metavar="SPK2UTT", help="What is enrolled is the mean of utterances: 'name utt utt ...' a line."),
    ] = None,
    cal_mean: Annotated[
        Path | None,
        typer.Option(
            help="Subtract the mean of these vectors first: an .scp, an .ark or their folder, or a .npy of it."
        ),
    ] = None,
    cohort: Annotated[
        Path | None, typer.Option(metavar="SCP", help="Normalise with these speakers, a vector for each.")
    ] = None,
    cohort_spk2utt: Annotated[
        Path | None,
        typer.Option(metavar="SPK2UTT", help="--cohort has vectors of utterances; take the means of these speakers."),
    ] = None,
    norm: Annotated[
        Literal["asnorm", "snorm"] | None,
        typer.Option(help="With --cohort: the nearest --top-n of it (asnorm, if not given) or all (snorm)."),
    ] = None,
    top_n: Annotated[
        int | None, typer.Option(min=2, help=f"With asnorm: speakers of the cohort looked at ({DEFAULT_TOP_N}).")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the scores, as WeSpeaker writes them.")] = None,
    det: Annotated[Path | None, typer.Option(help="Draw the DET curve: a .png or .svg.")] = None,
    p_target: Annotated[
        list[float] | None, typer.Option(help="Of minDCF: how probable a target is (0.01); repeatable.")
    ] = None,
    c_miss: Annotated[float, typer.Option(help="Of minDCF: the cost of a miss.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="Of minDCF: the cost of a false alarm.")] = 1.0,
    spk2utt: Annotated[
        Path | None,
        typer.Option(help="Who speaks in the trials, 'speaker utt ...' a line: intervals are then by speaker."),
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="95 % confidence intervals by resampling.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Score speaker trials, and count errors: EER, minDCF.

    With --trials and --embeddings the score is the cosine, normalised with --cohort. With --scores a file of scores is
    evaluated as it is.
    """
    for wrong, complaint in (
        ((trials is None) == (scores is None), "give --trials with --embeddings, or --scores"),
        (trials is not None and embeddings is None, "--trials needs --embeddings, the vectors of the recordings"),
        (
            scores is not None and embeddings is not None and cohort is None,
            "--scores are scored already; --embeddings goes with them only to normalise with a --cohort",
        ),
        (cohort is not None and embeddings is None, "--cohort needs --embeddings, to compare both with one another"),
        (
            embeddings is None and not (enroll is None and cal_mean is None),
            "--enroll and --cal-mean go with --embeddings",
        ),
        (
            cohort is None and not (norm is None and top_n is None and cohort_spk2utt is None),
            "--norm, --top-n and --cohort-spk2utt go with --cohort",
        ),
        (norm == "snorm" and top_n is not None, "--top-n goes with --norm asnorm; snorm looks at the whole cohort"),
        (scores is not None and cohort is None and output is not None, "--output would be a copy of --scores"),
    ):
        if wrong:
            raise typer.BadParameter(complaint)
    check_outputs((output, det), (trials, scores, embeddings, enroll, cal_mean, cohort, cohort_spk2utt, spk2utt))
    from tritone.speakers import metrics
    from tritone.speakers.score_file import read_scores, write_scores
    from tritone.speakers.trials import read_groups, read_trials

    try:
        costs = [metrics.Cost(each, c_miss, c_fa) for each in dict.fromkeys(p_target or metrics.DEFAULT_P_TARGETS)]
        if det is not None:
            from tritone.speakers.det import check_picture

            check_picture(det)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    listed = trials or scores
    assert listed is not None
    result = read_scores(scores) if scores is not None else None
    pairs = read_trials(listed) if result is None else result.trials
    has_labels = pairs.targets is not None
    if not has_labels and (output is None or det is not None):
        raise typer.BadParameter(f"{listed} has no labels, so there are no errors to count; --output writes the scores")
    speakers = None
    if spk2utt is not None:
        speakers = {name: speaker for speaker, names in read_groups(spk2utt).items() for name in names}
    if embeddings is not None:
        from tritone.speakers.archive import read_vectors
        from tritone.speakers.score_file import Scores
        from tritone.speakers.scoring import mean_is_subtracted, read_mean, score_trials, speaker_means

        if cal_mean is not None and mean_is_subtracted(embeddings):
            _say(f"warning: the model of {embeddings} has subtracted a mean already; --cal-mean subtracts another")
        groups = None if enroll is None else read_groups(enroll)
        cohort_groups = None if cohort_spk2utt is None else read_groups(cohort_spk2utt)
        mean = None if cal_mean is None else read_mean(cal_mean)
        others = None if cohort is None else read_vectors(cohort)
        if others is not None and cohort_groups is not None:
            others = speaker_means(others, cohort_groups)
        vectors = read_vectors(embeddings)
        if others is not None and norm != "snorm" and (top_n or DEFAULT_TOP_N) > len(others.keys):
            _say(f"warning: the cohort has {len(others.keys)} speakers, fewer than --top-n; all of them are taken")
        scored = score_trials(
            pairs,
            vectors,
            models=None if groups is None else speaker_means(vectors, groups),
            mean=mean,
            given=None if result is None else result.values,
            cohort=others,
            norm=norm or "asnorm",
            top_n=top_n or DEFAULT_TOP_N,
        )
        result = Scores(pairs, scored.values)
        if output is not None:
            write_scores(output, pairs, scored.values, scored.side)
            _say(f"wrote {output}")
    assert result is not None
    if not has_labels:
        return
    resamples = metrics.RESAMPLES if intervals else 0
    evaluation = metrics.evaluate(result, costs, speakers=speakers, resamples=resamples)
    if det is not None:
        from tritone.speakers.det import draw_det, save_picture

        save_picture(draw_det(evaluation, result, title=(output or listed).name), det)
        _say(f"wrote {det}")
    if as_json:
        typer.echo(json.dumps(_fields(evaluation, listed), ensure_ascii=False))
    else:
        _print(evaluation, (output or listed).name)


def _print(evaluation: "Evaluation", name: str) -> None:
    from rich.console import Console

    from tritone.speakers.metrics import RULE_OF_30

    curve = evaluation.curve
    rows = [_row("EER (%)", evaluation.eer, 100)]
    for cost, figure in evaluation.min_dcfs.items():
        rows.append(_row(f"minDCF (p_target:{cost.p_target:g} c_miss:{cost.c_miss:g} c_fa:{cost.c_fa:g})", figure, 1))
    notes = [f"{curve.num_targets} target and {curve.num_nontargets} nontarget trials."]
    if evaluation.errors_at_eer < RULE_OF_30:
        errors = evaluation.errors_at_eer
        notes.append(f"The EER rests on about {errors} missed target{'s' * (errors != 1)}: it is coarse.")
    if evaluation.resampled:
        unknown = ""
        if evaluation.eer.interval is None:
            unknown = (
                "; there are too few for intervals" if evaluation.eer.value else "; without an error there is none"
            )
        notes.append(f"Intervals by drawing {evaluation.resampled}{unknown}.")
    columns = [
        Column("figure", ""),
        Column("value", "value", digits=3),
        Column("interval", f"{100 * evaluation.level:g} % interval", align="right"),
        Column("threshold", "threshold", digits=5),
    ]
    table = Table(name, columns, rows, note=" ".join(notes))
    Console(highlight=False).print(table.without_empty())


def _row(name: str, figure: "Figure", scale: int) -> Mapping[str, Any]:
    bounds = figure.interval
    return {
        "figure": name,
        "value": scale * figure.value,
        "interval": None if bounds is None else f"{scale * bounds.low:.3f} to {scale * bounds.high:.3f}",
        "threshold": figure.threshold,
    }


def _fields(evaluation: "Evaluation", listed: Path) -> Mapping[str, Any]:
    def told(figure: "Figure") -> dict[str, Any]:
        bounds = figure.interval
        threshold = None if figure.threshold == float("-inf") else figure.threshold  # no infinity in JSON
        return {"value": figure.value, "threshold": threshold, "interval": None if bounds is None else list(bounds)}

    return {
        "trials": str(listed),
        "targets": evaluation.curve.num_targets,
        "nontargets": evaluation.curve.num_nontargets,
        "eer": told(evaluation.eer),
        "min_dcf": [
            {"p_target": cost.p_target, "c_miss": cost.c_miss, "c_fa": cost.c_fa, **told(figure)}
            for cost, figure in evaluation.min_dcfs.items()
        ],
        "level": evaluation.level,
        "resampled": evaluation.resampled or None,
    }


def _say(sentence: str) -> None:
    typer.echo(visible(sentence), err=True)
