"""SubRip (.srt) and WebVTT (.vtt): cues as files of subtitles.

SRT knows no escapes: a text that looks like an arrow of its times is written with a real arrow. In VTT `&`, `<` and `>`
are escaped, speakers are voices (`<v Anna>`), and what is in another language than most is said to be (`<lang de>`).

Source: WebVTT, W3C Candidate Recommendation (https://www.w3.org/TR/webvtt1/); SubRip has no specification, and is
written as VLC and ffmpeg read it.
"""

from tritone.formats.cues import CueOptions, cues_of
from tritone.formats.phrases import printable
from tritone.transcript import Transcript


def write_srt(transcript: Transcript, options: CueOptions | None = None) -> str:
    """Subtitles of a transcript as SubRip; empty if it has no words."""
    return "".join(
        f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n"
        + "".join(f"{line.replace('-->', '→')}\n" for line in cue.lines)
        + "\n"
        for number, cue in enumerate(cues_of(transcript, options, named=True), start=1)
    )


def write_vtt(transcript: Transcript, options: CueOptions | None = None) -> str:
    """Subtitles of a transcript as WebVTT."""
    blocks = ["WEBVTT\n"]
    for cue in cues_of(transcript, options):
        text = "\n".join(map(_escaped, cue.lines))
        if cue.language:
            text = f"<lang {_escaped(printable(cue.language))}>{text}</lang>"
        if cue.speaker:
            text = f"<v {_escaped(printable(cue.speaker))}>{text}</v>"
        blocks.append(f"\n{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{text}\n")
    return "".join(blocks)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{point}{rest:03d}"
