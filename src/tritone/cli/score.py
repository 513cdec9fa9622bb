"""`tritone score`: trials to scores, and scores to error rates."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from tritone.cli.shared.outputs import check_outputs
from tritone.cli.shared.turn_errors import CollarS, SkipOverlap, print_errors, scoring
from tritone.report.table import visible

DEFAULT_TOP_N = 100  # as tritone.speakers.scoring has it, which loads numpy


def score(
    trials: Annotated[
        list[Path] | None,
        typer.Option(
            help="Trials: 'enrol test target|nontarget', '1|0 enrol test', or 'enrol test' a line; repeatable."
        ),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(metavar="SCP", help="Their vectors: an .scp, an .ark, or a folder of `tritone embed`."),
    ] = None,
    scores: Annotated[
        list[Path] | None,
        typer.Option(
            help="Scores of trials made before: only count errors, or with --cohort normalise them; repeatable."
        ),
    ] = None,
    enroll: Annotated[
        Path | None,
        typer.Option(metavar="SPK2UTT", help="Enrolled models are means of utterances: 'name utt utt ...' a line."),
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
        int | None, typer.Option(min=2, help=f"With asnorm: number of nearest cohort speakers ({DEFAULT_TOP_N}).")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the scores, as WeSpeaker writes them; of several lists a folder, for TRIALS.score."),
    ] = None,
    det: Annotated[Path | None, typer.Option(help="Draw the DET curve: a .png or .svg.")] = None,
    p_target: Annotated[
        list[float] | None, typer.Option(help="For minDCF: prior probability of a target (0.01); repeatable.")
    ] = None,
    c_miss: Annotated[float, typer.Option(help="For minDCF: the cost of a miss.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="For minDCF: the cost of a false alarm.")] = 1.0,
    spk2utt: Annotated[
        Path | None,
        typer.Option(help="Speakers of the trials, 'speaker utt ...' a line: intervals are then by speaker."),
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals/--no-intervals", help="95 % confidence intervals by resampling.")
    ] = True,
    hypothesis: Annotated[
        Path | None,
        typer.Option(metavar="RTTM", help="Turns of speakers, to be compared with --reference: DER and JER."),
    ] = None,
    reference: Annotated[Path | None, typer.Option(metavar="RTTM", help="Who really speaks when.")] = None,
    collar_s: CollarS = None,
    skip_overlap: SkipOverlap = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each list, or for each recording of turns.")
    ] = False,
) -> None:
    """Score speaker trials, or who speaks when.

    Errors of trials are EER and minDCF, those of turns of speakers DER and JER.

    With --trials and --embeddings the score is the cosine, normalised with --cohort. With --scores a file of scores is
    evaluated as it is. Of several lists a table has a row for each. With --hypothesis and --reference, who speaks when
    is compared as pyannote.metrics does.
    """
    if hypothesis is not None or reference is not None:
        if trials or scores or embeddings is not None:
            raise typer.BadParameter("turns (--hypothesis, --reference) and trials are scored apart")
        if hypothesis is None or reference is None:
            raise typer.BadParameter("--hypothesis and --reference go together: what was found, and what is true")
        print_errors(hypothesis, scoring(reference, collar_s, skip_overlap), as_json)
        return
    scoring(None, collar_s, skip_overlap)
    lists = [*(trials or ()), *(scores or ())]
    for wrong, complaint in (
        (
            bool(trials) and bool(scores),
            "--trials and --scores are two ways to the same table: give --trials with --embeddings to score them, or "
            "--scores alone, which have their trials in them",
        ),
        (
            not lists,
            "give --trials with --embeddings, or --scores, or --hypothesis with --reference",
        ),
        (bool(trials) and embeddings is None, "--trials needs --embeddings, the vectors of the recordings"),
        (
            bool(scores) and embeddings is not None and cohort is None,
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
        (bool(scores) and cohort is None and output is not None, "--output would be a copy of --scores"),
        (len(set(lists)) < len(lists), "a list is given twice; name each once"),
        (len(lists) > 1 and det is not None, "--det draws one list; give its --trials or --scores alone"),
        (
            len(lists) > 1 and output is not None and len({each.name for each in lists}) < len(lists),
            "two lists have the same name, and their scores would have the same file in --output; score them apart",
        ),
    ):
        if wrong:
            raise typer.BadParameter(complaint)
    outputs: dict[Path, Path] = {}
    if output is not None:
        outputs = {lists[0]: output}
        if len(lists) > 1:
            output.mkdir(parents=True, exist_ok=True)
            outputs = {each: output / f"{each.name}.score" for each in lists}
    given = (embeddings, enroll, cal_mean, cohort, cohort_spk2utt, spk2utt)
    check_outputs((*outputs.values(), det), (*lists, *given))
    from tritone.speakers import metrics
    from tritone.speakers.score_file import Scores, read_scores, write_scores
    from tritone.speakers.scorer import TrialScorer
    from tritone.speakers.tables import figures, figures_of_all
    from tritone.speakers.trials import read_groups, read_trials

    try:
        costs = [metrics.Cost(each, c_miss, c_fa) for each in dict.fromkeys(p_target or metrics.DEFAULT_P_TARGETS)]
        if det is not None:
            from tritone.speakers.det import check_picture

            check_picture(det)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    before = {each: read_scores(each) for each in scores or ()}
    pairs = {each: before[each].trials if each in before else read_trials(each) for each in lists}
    for listed, its in pairs.items():
        if its.targets is None and (output is None or det is not None):
            raise typer.BadParameter(
                f"{listed} has no labels, so there are no errors to count; --output writes the scores"
            )
    speakers = None
    if spk2utt is not None:
        speakers = {name: speaker for speaker, names in read_groups(spk2utt).items() for name in names}
    results: dict[Path, Scores] = before
    if embeddings is not None:
        scorer = TrialScorer.read(
            embeddings,
            enroll=enroll,
            cal_mean=cal_mean,
            cohort=cohort,
            cohort_spk2utt=cohort_spk2utt,
            norm=norm or "asnorm",
            top_n=top_n or DEFAULT_TOP_N,
        )
        for doubt in scorer.doubts:
            _notify(f"warning: {doubt}")
        results = {}
        for listed, its in pairs.items():
            scored = scorer.score(its, before[listed].values if listed in before else None)
            results[listed] = Scores(its, scored.values)
            if listed in outputs:
                write_scores(outputs[listed], its, scored.values, scored.side)
                _notify(f"wrote {outputs[listed]}")
    evaluations = {
        listed: metrics.evaluate(result, costs, speakers=speakers, resamples=metrics.RESAMPLES if intervals else 0)
        for listed, result in results.items()
        if result.trials.targets is not None
    }
    names = {listed: outputs.get(listed, listed).name for listed in lists}
    if det is not None:
        from tritone.speakers.det import draw_det, save_picture

        (listed,) = lists
        save_picture(draw_det(evaluations[listed], results[listed], title=names[listed]), det)
        _notify(f"wrote {det}")
    if as_json:
        for listed, evaluation in evaluations.items():
            fields = {"trials": str(listed), **evaluation.to_dict()}
            typer.echo(json.dumps(fields, ensure_ascii=False))
    elif evaluations:
        from rich.console import Console

        named = {names[listed]: evaluation for listed, evaluation in evaluations.items()}
        table = figures_of_all(named) if len(lists) > 1 else figures(evaluations[lists[0]], names[lists[0]])
        Console(highlight=False).print(table.without_empty())


def _notify(sentence: str) -> None:
    typer.echo(visible(sentence), err=True)
