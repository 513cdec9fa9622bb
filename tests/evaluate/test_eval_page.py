"""The page of an evaluation: what it shows, what it plays, and that no text in it can act."""

import base64
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tritone.audio import encode
from tritone.audio.encode import encode_speech
from tritone.evaluate.compare import compare
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.page import page, write_page
from tritone.evaluate.result import Evaluation, Report, Row
from tritone.evaluate.score import score_utterance
from tritone.report.stamp import Stamp

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><b>out</b>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "' onclick='alert(1)",
]


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def stamp() -> Stamp:
    return Stamp(
        command="x", date="d", commit="c", processor="p", cores=1, memory_gib=1.0, system="s", versions={}, load=0.0
    )


@pytest.fixture
def tone(tmp_path: Path) -> str:
    path = tmp_path / "tone.wav"
    time = np.arange(16000) / 16000
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 440 * time), 16000)
    return str(path)


def evaluation(
    name: str, texts: Mapping[str, tuple[str, str | None]], audio: str = "absent.wav", **changes: Any
) -> Evaluation:
    """Reference and text of each utterance; a text of None is a failure."""
    rows = [
        Row(
            score=score_utterance(key, reference, text, Normalizer(), error="lost <b>it</b>" if text is None else None),
            audio=audio,
            audio_s=1.0,
            latency_s=0.125,
            compute_s=0.1,
        )
        for key, (reference, text) in texts.items()
    ]
    fields: dict[str, Any] = {"total": len(rows), "wall_s": 4.0, "concurrencies": [8]} | changes
    return Evaluation(name=name, system={"kind": "fake"}, normalization=Normalization(), rows=rows, **fields)


def rendered(stamp: Stamp, *evaluations: Evaluation, budget_mb: float = 1.0) -> Page:
    report = Report(stamp=stamp, evaluations=evaluations, title="Title")
    comparison = compare(report.compared) if len(evaluations) > 1 else None
    return Page(page(report, comparison, worst=5, audio_budget_mb=budget_mb))


def test_a_page_shows_the_figures_the_aligned_texts_and_the_conditions(stamp: Stamp, tone: str):
    found = rendered(stamp, evaluation("it", {"u1": ("one two", "one too"), "u2": ("three", "three")}, tone))
    assert "33.33 %" in found.text
    assert "125" in found.text  # milliseconds
    assert "too" in found.text
    classes = [each.get("class") for each in found.all("span")]
    # One in the legend, one in the text.
    assert classes.count("pair substitution") == 2
    assert classes.count("pair deletion") == classes.count("pair insertion") == 1
    assert "lower case" in found.text


def test_each_figure_of_an_utterance_carries_its_name_for_screens_without_a_heading(stamp: Stamp):
    found = rendered(stamp, evaluation("it", {"u1": ("one two", "one too")}))
    names = [name for each in found.all("td") if (name := each.get("data-name"))]
    assert names == ["errors", "WER %", "words", "audio s", "latency ms"]


def test_utterances_with_the_most_errors_come_first(stamp: Stamp):
    texts = {"good": ("a b", "a b"), "bad": ("a b", "c d"), "middling": ("a b", "a c"), "lost": ("a", None)}
    found = rendered(stamp, evaluation("it", texts))
    assert re.findall(r"\b(good|bad|middling|lost)\b", found.text.partition("Those with")[2])[:4:] == [
        "lost",
        "lost",  # its error message
        "bad",
        "middling",
    ]


def test_every_utterance_has_a_player_that_holds_its_audio(stamp: Stamp, tone: str):
    found = rendered(stamp, evaluation("it", {"u1": ("one", "one"), "u2": ("two", "too")}, tone))
    players = found.all("audio")
    assert len(players) == 2
    for player in players:
        assert "controls" in player
        head, _, content = (player["src"] or "").partition(",")
        assert head == "data:audio/mpeg;base64"
        sound, rate = soundfile.read(io.BytesIO(base64.b64decode(content)))
        assert (rate, len(sound)) == (16000, pytest.approx(16000, abs=1200))
        assert np.abs(np.fft.rfft(sound)).argmax() * rate / len(sound) == pytest.approx(440, abs=2)


def test_audio_beyond_the_budget_is_left_out_from_the_end_and_said(stamp: Stamp, tone: str):
    texts = {f"u{number}": ("one two three", " ".join(["x"] * number)) for number in range(1, 5)}
    size = len(encode_speech(soundfile.read(tone, dtype="float32")[0], 16000)[0]) * 4 / 3 / 1e6
    found = rendered(stamp, evaluation("it", texts, tone), budget_mb=2.5 * size)
    assert len(found.all("audio")) == 2
    assert "The audio of 2 utterances was left out" in found.text
    assert rendered(stamp, evaluation("it", texts, tone), budget_mb=0).all("audio") == []


def test_audio_that_is_gone_is_said_and_costs_no_page(stamp: Stamp):
    found = rendered(stamp, evaluation("it", {"u": ("one", "one")}, "/nowhere/absent.wav"))
    assert found.all("audio") == []
    assert "/nowhere/absent.wav" in found.text


def test_where_no_mp3_can_be_written_a_wav_is(stamp: Stamp, tone: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encode, "_writes_mp3", lambda: False)
    (player,) = rendered(stamp, evaluation("it", {"u": ("one", "one")}, tone)).all("audio")
    head, _, content = (player["src"] or "").partition(",")
    assert head == "data:audio/wav;base64"
    assert soundfile.read(io.BytesIO(base64.b64decode(content)))[1] == 16000


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_audio_of_any_rate_becomes_one_that_every_browser_plays(rate: int):
    content, mime = encode_speech(np.full(rate, 2.0, np.float32), rate)
    sound, played = soundfile.read(io.BytesIO(content))
    assert (mime, played) == ("audio/mpeg", 16000)
    assert np.abs(sound).max() <= 1.5  # clipped before it was encoded


def test_hostile_texts_names_and_ids_stay_texts(stamp: Stamp):
    texts: dict[str, tuple[str, str | None]] = {f"{evil} {n}": (evil, f"{evil} x") for n, evil in enumerate(HOSTILE)}
    texts["lost"] = ("one", None)
    first = evaluation(HOSTILE[0], texts)
    kept = Normalization(punctuation="keep", case="keep")
    first = first.rescored(kept)
    second = evaluation(HOSTILE[1], texts).rescored(kept)
    for found in (rendered(stamp, first), rendered(stamp, first, second)):
        assert found.all("img") == []
        assert found.all("b") == []
        assert all(set(each) == {"nonce"} for each in found.all("script"))
        assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
        assert not [each for each in found.all("a") if (each.get("href") or "").startswith("javascript")]
        assert "alert(1)</script> 0" in found.text  # shown as it is
        assert "{{ 7 * 7 }}{% raw %} 4" in found.text


def test_a_page_asks_no_network_for_anything(stamp: Stamp, tone: str):
    found = rendered(stamp, evaluation("it", {"u": ("one", "one")}, tone))
    for _, attributes in found.tags:
        for name in ("src", "href", "action", "poster", "srcset"):
            assert (attributes.get(name) or "data:").startswith("data:")


def test_systems_that_are_compared_stand_side_by_side(stamp: Stamp):
    first = evaluation("fp32", {"u1": ("one two", "one two"), "u2": ("three", "three")})
    second = evaluation("int8", {"u1": ("one two", "one too"), "u2": ("three", "three")})
    found = rendered(stamp, first, second)
    rows = [each.get("class") or "" for each in found.all("tr")]
    assert [row.split() for row in rows if "wrong" in row or "exact" in row] == [
        ["wrong", "answered", "different"],
        ["exact", "answered", "same"],
    ]
    assert "33.33" in found.text
    assert found.text.count("int8") >= 4


def test_an_interrupted_run_and_failures_are_said_at_the_top(stamp: Stamp):
    found = rendered(stamp, evaluation("it", {"u1": ("one two", None)}, complete=False, total=7))
    top = found.text.partition("Utterances")[0]
    assert "interrupted after 1 of 7 utterances" in top
    assert "1 of 1 utterances failed" in top


def test_a_run_that_was_interrupted_before_its_first_answer_has_a_page_too(stamp: Stamp):
    assert "interrupted after 0 of 7" in rendered(stamp, evaluation("it", {}, complete=False, total=7)).text


def test_a_page_of_silence_and_of_texts_without_spaces(stamp: Stamp):
    found = rendered(stamp, evaluation("it", {"u1": ("", ""), "u2": ("", "noise"), "u3": ("我用 GPU", "我用 gpu")}))
    assert "nothing was said" in found.text
    assert "∞" in found.text


def test_the_audio_of_a_page_is_that_of_this_run_not_where_an_earlier_report_had_it(stamp: Stamp, tone: str):
    texts = {"u": ("one", "one")}
    old, new = evaluation("old", texts, "/elsewhere/gone.wav"), evaluation("new", texts, tone)
    report = Report(stamp=stamp, evaluations=[new], baseline=old)
    found = Page(page(report, compare(report.compared), worst=5, audio_budget_mb=1.0))
    assert len(found.all("audio")) == 1


def test_a_file_name_that_is_not_utf_8_does_not_cost_the_page(stamp: Stamp, tmp_path: Path):
    report = Report(stamp=replace(stamp, command="evaluate r\udce9sum\udce9.jsonl"), evaluations=[evaluation("it", {})])
    write_page(report, None, tmp_path / "page.html")
    assert "sum" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_is_written_as_a_file(stamp: Stamp, tmp_path: Path):
    report = Report(stamp=stamp, evaluations=[evaluation("it", {"u": ("你好", "你好")})])
    write_page(report, None, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
