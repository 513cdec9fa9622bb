"""Transcripts, speech segments and turns of speakers as documents of the formats that other tools read.

write("srt", transcript)                       ->  text of a subtitle file
write("rttm", activity, recording="meeting")   ->  lines, which name their recording
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tritone.activity import SpeechActivity
from tritone.errors import InputError
from tritone.formats.ctm import write_ctm
from tritone.formats.labels import write_labels
from tritone.formats.phrases import SLACK_S, Phrase, phrases_of, printable
from tritone.formats.rttm import Turn, write_rttm
from tritone.formats.subtitles import write_srt, write_vtt
from tritone.formats.textgrid import Label, write_textgrid
from tritone.transcript import Transcript

SPEECH = "speech"  # the label of segments of which nothing else is known

Document = Transcript | SpeechActivity | Sequence[Turn]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format: the suffix of its files, and what can be written in it.

    `named`: every line names its recording, so that a file may hold several. `times`: it has times, so that transcripts
    need more than their text.
    """

    suffix: str
    help: str
    transcript: Callable[[Transcript, str], str]
    activity: Callable[[SpeechActivity, str], str] | None = None
    turns: Callable[[Sequence[Turn], str], str] | None = None
    named: bool = False
    times: bool = True


def write(name: str, document: Document, *, recording: str = "") -> str:
    """Write a transcript, speech segments or turns of speakers in a format.

    Args:
        name: one of `FORMATS`.
        recording: what lines and JSON call the recording; CTM and RTTM need it, and it has no spaces there. Turns
            know their own.

    Returns:
        A whole file, or for formats that are `named` lines that may follow those of other recordings.

    Raises:
        InputError: the format has no such documents, or cannot hold this one, such as CTM a transcript without times.
        ValueError: there is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}, got {name!r}")
    chosen = FORMATS[name]
    if isinstance(document, Transcript):
        return chosen.transcript(document, recording)
    if isinstance(document, SpeechActivity):
        if chosen.activity is not None:
            return chosen.activity(document, recording)
    elif chosen.turns is not None:
        return chosen.turns(document, recording)
    able = ", ".join(formats_of(type(document)))
    raise InputError(f"{name} is a format of words, and there are none; choose one of {able}")


def formats_of(kind: type) -> list[str]:
    """Names of the formats that can hold a `Transcript`, a `SpeechActivity`, or turns (any other type)."""
    if kind is Transcript:
        return list(FORMATS)
    return [name for name, each in FORMATS.items() if (each.activity if kind is SpeechActivity else each.turns)]


def turns_of(transcript: Transcript, recording: str) -> list[Turn]:
    """Who speaks when by the words of a transcript: a turn for each phrase."""
    return [Turn(recording, each.start_s, each.end_s, each.speaker) for each in phrases_of(transcript)]


def _text(transcript: Transcript, recording: str) -> str:
    phrases = phrases_of(transcript) if any(word.speaker for word in transcript.words) else []
    if not phrases:
        return f"{printable(transcript.text)}\n"
    lines: list[list[Phrase]] = []
    for phrase in phrases:
        if not lines or lines[-1][-1].speaker != phrase.speaker:
            lines.append([])
        lines[-1].append(phrase)
    return "".join(
        f"{printable(line[0].speaker) or 'unknown'}: "
        + Phrase(tuple(word for phrase in line for word in phrase.words)).text
        + "\n"
        for line in lines
    )


def _transcript_labels(transcript: Transcript) -> Iterator[Label]:
    for each in phrases_of(transcript):
        yield each.start_s, each.end_s, f"{each.speaker}: {each.text}" if each.speaker else each.text


def _activity_labels(activity: SpeechActivity) -> Iterator[Label]:
    return ((each.start_s, each.end_s, SPEECH) for each in activity.segments)


def _turn_labels(turns: Iterable[Turn]) -> list[Label]:
    return sorted((each.start_s, each.end_s, each.speaker or SPEECH) for each in turns)


def _transcript_textgrid(transcript: Transcript, recording: str) -> str:
    phrases = phrases_of(transcript)
    if any(before.end_s - SLACK_S > after.start_s for before, after in pairwise(phrases)):  # speakers who talk at once
        speakers = dict.fromkeys(each.speaker for each in phrases)
        return write_textgrid(
            [
                tier
                for speaker in speakers
                for tier in _tiers([each for each in phrases if each.speaker == speaker], transcript, f"{speaker} ")
            ],
            transcript.audio_s,
        )
    return write_textgrid(_tiers(phrases, transcript), transcript.audio_s)


def _tiers(phrases: Sequence[Phrase], transcript: Transcript, of: str = "") -> list[tuple[str, list[Label]]]:
    tiers = [(f"{of}phrases", [(each.start_s, each.end_s, each.text) for each in phrases])]
    if transcript.words:  # else no phrase is timed
        tiers.append((f"{of}words", [(word.start_s, word.end_s, word.text) for each in phrases for word in each.words]))
    if not of and any(each.speaker for each in phrases):
        tiers.append(("speakers", [(each.start_s, each.end_s, each.speaker) for each in phrases]))
    return tiers


def _turns_textgrid(turns: Sequence[Turn], recording: str) -> str:
    """A tier for each speaker: those of several may overlap."""
    tiers: dict[str, list[Label]] = {}
    for start_s, end_s, speaker in _turn_labels(turns):
        tiers.setdefault(speaker, []).append((start_s, end_s, speaker))
    return write_textgrid(sorted(tiers.items()), max((each.end_s for each in turns), default=0.0))


def _json(fields: Mapping[str, object], recording: str) -> str:
    return json.dumps({**({"recording": recording} if recording else {}), **fields}, ensure_ascii=False) + "\n"


def _turn_fields(turns: Iterable[Turn]) -> list[dict[str, object]]:
    return [{"start_s": each.start_s, "end_s": each.end_s, "speaker": each.speaker} for each in turns]


FORMATS: Mapping[str, Format] = {
    "text": Format(
        suffix=".txt",
        help="text alone, with speakers a line for each turn; segments and turns as start, end and speaker",
        transcript=_text,
        activity=lambda activity, _: "".join(f"{each.start_s:.3f}\t{each.end_s:.3f}\n" for each in activity.segments),
        turns=lambda turns, _: "".join(
            f"{each.start_s:.3f}\t{each.end_s:.3f}\t{printable(each.speaker)}\n" for each in turns
        ),
        times=False,
    ),
    "json": Format(
        suffix=".json",
        help="all that is known, one JSON object a line",
        transcript=lambda transcript, name: _json(transcript.to_dict(), name),
        activity=lambda activity, name: _json(activity.to_dict(), name),
        turns=lambda turns, name: _json({"turns": _turn_fields(turns)}, name),
        named=True,
    ),
    "srt": Format(suffix=".srt", help="subtitles (SubRip)", transcript=lambda transcript, _: write_srt(transcript)),
    "vtt": Format(suffix=".vtt", help="subtitles (WebVTT)", transcript=lambda transcript, _: write_vtt(transcript)),
    "ctm": Format(suffix=".ctm", help="words with times (NIST)", transcript=write_ctm, named=True),
    "textgrid": Format(
        suffix=".TextGrid",
        help="tiers of intervals (Praat)",
        transcript=_transcript_textgrid,
        activity=lambda activity, _: write_textgrid([(SPEECH, _activity_labels(activity))], activity.audio_s),
        turns=_turns_textgrid,
    ),
    "rttm": Format(
        suffix=".rttm",
        help="who speaks when (NIST)",
        transcript=lambda transcript, name: write_rttm(turns_of(transcript, name)),
        activity=lambda activity, name: write_rttm(
            Turn(name, each.start_s, each.end_s, SPEECH) for each in activity.segments
        ),
        turns=lambda turns, _: write_rttm(turns),
        named=True,
    ),
    "audacity": Format(
        suffix=".txt",
        help="labels (Audacity)",
        transcript=lambda transcript, _: write_labels(_transcript_labels(transcript)),
        activity=lambda activity, _: write_labels(_activity_labels(activity)),
        turns=lambda turns, _: write_labels(_turn_labels(turns)),
    ),
}
"""All formats by name."""
