"""Strict readers of what we write, made from the formats' specifications and not from our writers."""

import html
import re
from typing import NamedTuple


class Shown(NamedTuple):
    """A cue as a player has it: times in milliseconds, lines, and the voice of VTT."""

    start: int
    end: int
    lines: list[str]
    voice: str = ""


def _clock(text: str, point: str) -> int:
    found = re.fullmatch(rf"(\d\d+):([0-5]\d):([0-5]\d){re.escape(point)}(\d{{3}})", text)
    assert found is not None, text
    hours, minutes, seconds, rest = map(int, found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + rest


def _times(line: str, point: str) -> tuple[int, int]:
    start, arrow, end = line.split(" ")
    assert arrow == "-->"
    return _clock(start, point), _clock(end, point)


def read_srt(text: str) -> list[Shown]:
    assert text == "" or text.endswith("\n\n")
    found = []
    for number, block in enumerate(text.split("\n\n")[:-1], start=1):
        first, second, *lines = block.split("\n")
        assert first == str(number)
        assert lines
        assert all(line.strip() and "-->" not in line for line in lines)
        found.append(Shown(*_times(second, ","), lines))
    return found


def read_vtt(text: str) -> list[Shown]:
    """Cues by the syntax of WebVTT: no id, no settings, at most a voice around all of the text."""
    head, *blocks = text.removesuffix("\n").split("\n\n")
    assert head == "WEBVTT"
    found = []
    for block in blocks:
        first, *lines = block.split("\n")
        payload = "\n".join(lines)
        assert payload.strip()
        voice = ""
        if spoken := re.fullmatch(r"<v ([^>]*)>(.*)</v>", payload, re.DOTALL):
            voice, payload = html.unescape(spoken[1]), spoken[2]
        assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", payload), payload
        found.append(Shown(*_times(first, "."), html.unescape(payload).split("\n"), voice))
    return found


def read_textgrid(text: str) -> dict[str, list[tuple[float, float, str]]]:
    """The tiers of a TextGrid in the full text format; every interval must begin where the one before it ends."""
    lines = iter(text.splitlines())

    def value(name: str) -> str:
        found = re.fullmatch(rf" *{name} = (.*?) ?", next(lines))
        assert found is not None, name
        return found[1]

    def string(name: str) -> str:
        found = value(name)
        assert re.fullmatch(r'"(?:[^"]|"")*"', found), found
        return found[1:-1].replace('""', '"')

    assert (string("File type"), string("Object class")) == ("ooTextFile", "TextGrid")
    assert next(lines) == ""
    assert float(value("xmin")) == 0
    end = float(value("xmax"))
    assert end > 0
    assert next(lines) == "tiers? <exists>"
    size = int(value("size"))
    assert next(lines) == "item []:"
    tiers: dict[str, list[tuple[float, float, str]]] = {}
    for item in range(1, size + 1):
        assert next(lines).strip() == f"item [{item}]:"
        assert string("class") == "IntervalTier"
        name = string("name")
        assert (float(value("xmin")), float(value("xmax"))) == (0, end)
        intervals = []
        free = 0.0
        for index in range(1, int(value("intervals: size")) + 1):
            assert next(lines).strip() == f"intervals [{index}]:"
            start, stop = float(value("xmin")), float(value("xmax"))
            assert start == free
            assert stop > start
            free = stop
            intervals.append((start, stop, string("text")))
        assert free == end
        tiers[name] = [each for each in intervals if each[2]]
    assert list(lines) == []
    return tiers
