"""The tables of `tritone demo` for speaker models: the voices of the clips, and error rates with their trials."""

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from tritone.demo import Voice, VoiceRun


def voice_tables(run: VoiceRun, narrow: bool = False) -> Iterator[Table]:
    """A row for each clip, then a row for each list of trials. `narrow` fits a terminal of 80 columns."""
    clips = _table(f"Voices: {run.model}", narrow)
    for name in ("clip",) if narrow else ("clip", "voice"):
        clips.add_column(name, no_wrap=True)
    for name in ("own half", "other speaker") if narrow else ("cosine with own half", "with nearest other speaker"):
        clips.add_column(name, justify="right", no_wrap=True)
    clips.add_column("which", no_wrap=True)
    for name in ("audio s", "latency"):
        clips.add_column(name, justify="right", no_wrap=True)
    embedded = run.embedded
    cosines = run.cosines()
    for voice in run.voices:
        place = embedded.index(voice) if voice in embedded else None
        clips.add_row(
            voice.clip.name,
            *(() if narrow else (voice.clip.voice,)),
            Text("failed", "red") if place is None else f"{cosines[place, place]:.2f}",
            *_nearest(run, place),
            f"{voice.audio_s:.2f}",
            "" if place is None else f"{voice.latency_s * 1000:.0f} ms",
        )
    clips.caption = (
        "Clips are cut in the middle, first halves compared with second halves. Cosine: 1 is the same direction. "
        "Latency: from the request with a half to its embedding."
    )
    yield clips
    yield _rates(run, narrow)


def failures(run: VoiceRun) -> list[Voice]:
    """The clips that have no embeddings."""
    return [voice for voice in run.voices if voice.error is not None]


def _table(title: str, narrow: bool) -> Table:
    if narrow:
        return Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    return Table(title=title)


def _nearest(run: VoiceRun, place: int | None) -> tuple[str, str]:
    found = None if place is None else run.nearest_other(place)
    return ("", "") if found is None else (f"{found[0]:.2f}", found[1].name)


def _rates(run: VoiceRun, narrow: bool) -> Table:
    rates = _table(f"Speaker trials: {run.model}", narrow)
    rates.add_column("trials", overflow="fold")
    for name in ("same speaker", "different") if not narrow else ("same", "different"):
        rates.add_column(name, justify="right", no_wrap=True)
    rates.add_column("mean cosines", justify="right", no_wrap=True)
    rates.add_column("EER %", justify="right", no_wrap=True)
    rates.add_column("interval", justify="right", no_wrap=True)
    targets, cosines, eer = run.targets(), run.cosines(), run.eer()
    means = [f"{cosines[kind].mean():.2f}" if kind.any() else "-" for kind in (targets, ~targets)]
    rates.add_row(
        "halves of these clips, now",
        str(targets.sum()),
        str((~targets).sum()),
        " / ".join(means),
        "" if eer is None else f"{100 * eer:.1f}",
        "",
    )
    note = "EER: equal error rate. Trials of the clips are few, of synthetic voices, and easy: halves of one recording."
    if run.evaluation is not None:
        for each in run.evaluation.sets:
            counts = f"{each.targets:,}", f"{each.nontargets:,}"
            rates.add_row(
                Text(each.name), *counts, "", f"{100 * each.eer.value:.1f}", _interval(each.eer.interval), style="bold"
            )
        levels = " and ".join(dict.fromkeys(f"{100 * each.level:g} %" for each in run.evaluation.sets))
        note += (
            f" The other rows were measured before, with `{run.evaluation.measured_by}`, on people who are not in "
            f"training; intervals of {levels}. See the model card."
        )
    rates.caption = Text(note)
    return rates


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"
