"""Texts as sentences, clauses, phonemes and speech."""

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tritone
from toy_voice import SAMPLE_RATE, require_espeak, sound, write_espeak, write_toy_voice
from tritone.errors import InputError, OperatorError
from tritone.families.piper.export import export_piper
from tritone.pipelines.synthesis import pipeline as pipeline_module
from tritone.pipelines.synthesis.phonemes import Espeak
from tritone.pipelines.synthesis.pipeline import PAUSE_S
from tritone.texts.sentences import MAX_CLAUSE, MAX_SENTENCE, clauses, cleaned, sentences

PAUSE = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.float32)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{write_espeak(tmp_path / 'bin')}:/usr/bin:/bin")


@pytest.fixture
def voice(tmp_path: Path, stand_in: None) -> tritone.Voice:
    report = export_piper(voice=write_toy_voice(tmp_path / "piper"), output=tmp_path / "ann")
    return tritone.load(report.bundle.path, threads=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello. How are you?", ["Hello.", "How are you?"]),
        ("Dr. Smith left. He was late!", ["Dr. Smith left.", "He was late!"]),
        ("J. R. R. Tolkien wrote it. I read it.", ["J. R. R. Tolkien wrote it.", "I read it."]),
        ("The U.S. Army came at 3.5 per cent. Then it left.", ["The U.S. Army came at 3.5 per cent.", "Then it left."]),
        ("It ends etc. and goes on. Fine.", ["It ends etc. and goes on.", "Fine."]),
        ('"Go!" he said. "Why?" "So."', ['"Go!"', "he said.", '"Why?"', '"So."']),
        ("One\n\nTwo", ["One", "Two"]),
        ("One line\nand its next.", ["One line and its next."]),
        ("Things:\n- apples\n- pears", ["Things: - apples", "- pears"]),
        ("你好。你好吗？很好", ["你好。", "你好吗？", "很好"]),
        ("Am 3. Mai war es kalt. Sehr.", ["Am 3. Mai war es kalt.", "Sehr."]),
        ("...", []),
        ("  \n\t ", []),
        ("Wait... what?!", ["Wait...", "what?!"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert list(sentences(cleaned(text))) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Well, did he?", [("Well", ","), ("did he", "?")]),
        ("Dr. Smith: 1,000 pears; 3.5 kg!", [("Dr. Smith", ":"), ("1,000 pears", ";"), ("3.5 kg", "!")]),
        ("Pears - really", [("Pears", ","), ("really", "")]),
        ("A well-known (old) word.", [("A well-known (old) word", ".")]),
        ("What?!", [("What", "?")]),
        ("你好，世界。", [("你好", ","), ("世界", ".")]),
        ('"Yes," he said.', [('"Yes', ","), ("he said", ".")]),
    ],
)
def test_clauses_and_the_marks_behind_them(sentence: str, expected: list[tuple[str, str]]) -> None:
    assert list(clauses(sentence)) == expected


def test_text_of_any_length_is_cut_and_nothing_is_lost() -> None:
    words = "word " * 2000
    found = list(sentences(cleaned(words)))
    assert max(map(len, found)) <= MAX_SENTENCE
    assert " ".join(found).split() == words.split()
    block = "x" * 5000
    assert "".join(sentences(block)) == block
    assert max(len(text) for text, _ in clauses("y" * 250 + ", z")) <= MAX_CLAUSE


def test_what_nobody_can_read_aloud_is_left_out() -> None:
    assert list(sentences(cleaned("a\x00b\ud800c\ue000\x1b[31md"))) == ["a b c [31md"]


def test_speech_of_a_text_is_that_of_its_sentences_with_pauses(voice: tritone.Voice) -> None:
    parts = list(voice.speak_iter("Ab, cd. Ef!"))
    assert [each.text for each in parts] == ["Ab, cd.", "Ef!"]
    np.testing.assert_array_equal(parts[0].waveform, np.concatenate([sound("ab, cd."), PAUSE]))
    np.testing.assert_array_equal(parts[1].waveform, sound("ef!"))
    whole = voice.speak("Ab, cd. Ef!")
    assert whole.text == "Ab, cd. Ef!"
    np.testing.assert_array_equal(whole.waveform, np.concatenate([each.waveform for each in parts]))
    assert [each.text for each in voice.run_iter(["a", "b"])] == ["a", "b"]


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_a_sentence_of_too_many_phonemes_is_spoken_in_parts_without_pauses(
    voice: tritone.Voice, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    """Figures are longer in speech than in writing; the memory of a call grows with its phonemes."""
    monkeypatch.setattr(pipeline_module, "MAX_PHONEMES", round(8 / speed))
    parts = list(voice.speak_iter("abc def ghi jkl. Abcdefghijkl!", speed=speed))
    assert [part.text for part in parts] == ["abc def", "ghi jkl.", "Abcdefg", "hijkl!"]
    said = [sound(part.text.lower(), slower=1 / speed) for part in parts]
    pause = np.zeros(round(PAUSE_S / speed * SAMPLE_RATE), np.float32)
    wanted = [said[0], np.concatenate([said[1], pause]), *said[2:]]
    for part, waveform in zip(parts, wanted, strict=True):
        np.testing.assert_array_equal(part.waveform, waveform)


@pytest.mark.usefixtures("stand_in")
def test_speed_and_speaker_are_asked_for(tmp_path: Path) -> None:
    report = export_piper(voice=write_toy_voice(tmp_path / "piper", ["ann", "ben"]), output=tmp_path / "two")
    voice = tritone.load(report.bundle.path, speaker="ben")
    assert voice.speakers == ("ann", "ben")
    np.testing.assert_array_equal(voice.speak("ab").waveform, sound("ab", speaker=1))
    np.testing.assert_array_equal(voice.speak("ab", speaker="ann", speed=0.5).waveform, sound("ab", slower=2))
    with pytest.raises(InputError, match="no speaker 'carl'; the voice has ann, ben"):
        voice.speak("ab", speaker="carl")


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "nothing to speak"),
        ("\x00 ... \x07", {}, "nothing to speak"),
        ("a" * 16385, {}, "16,385 characters; up to 16,384"),
        ("a", {"speed": 0.2}, "speed must be 0.25 to 4, got 0.2"),
        ("a", {"speaker": "ann"}, "one speaker, who has no name"),
        ("a", {"pitch": 2}, "unknown request parameter 'pitch'; known are speed, speaker"),
    ],
)
def test_what_cannot_be_spoken_is_refused(
    voice: tritone.Voice, text: str, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        voice.speak(text, **options)
    with pytest.raises(InputError, match=expected):
        voice.speak_iter(text, **options)


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_hangs_is_killed_and_others_are_not_disturbed() -> None:
    espeak = Espeak("en-us", timeout_s=0.5)
    found: list[str] = []
    beside = threading.Thread(target=lambda: found.append(espeak.phonemes("abc")))
    begun = time.monotonic()
    beside.start()
    with pytest.raises(InputError, match=r"took more than 0\.5 s for 'it hangs.*was killed"):
        espeak.phonemes("it hangs")
    assert time.monotonic() - begun < 30
    beside.join()
    assert found == ["abc"]
    with pytest.raises(InputError, match="failed at 'it crashes"):
        espeak.phonemes("it crashes")
    assert espeak.phonemes("Then, this.") == "then, this."


@pytest.mark.usefixtures("stand_in")
def test_clauses_in_which_nothing_is_spoken_do_not_shift_the_others() -> None:
    # The stand-in writes an empty line for a clause of other letters.
    assert Espeak("en-us").phonemes("ab, é, cd.") == "ab, cd."


@pytest.mark.usefixtures("stand_in")
def test_a_text_gives_no_phonemes_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "espeak-ng"
    program.write_text("#!/bin/sh\ncat\n", encoding="utf-8")  # what it gets
    assert "[[" not in Espeak("en-us").phonemes("say [[h@loU]] to me")


@pytest.mark.parametrize(
    "text", ["\x00\x01\x02 a", "مرحبا بالعالم", "你好，世界。", "🙂 ok", "<speak>a</speak>", "a" * 9000]
)
def test_odd_texts_are_spoken(voice: tritone.Voice, text: str) -> None:
    assert voice.speak(text).audio_s > 0


def test_a_program_that_does_not_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_espeak(tmp_path / "bin")
    (folder / "espeak-ng").write_bytes(b"\x7fELF, not really")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with pytest.raises(OperatorError, match=r"cannot be run|does not work"):
        Espeak("en-us")


def test_the_real_program_writes_phonemes_with_marks() -> None:
    require_espeak()
    espeak = Espeak("en-us")
    found = espeak.phonemes("Well, Dr. Smith, is it 3.5?")
    assert found.endswith("?")
    assert found.count(",") == 2
    assert found.startswith("wˈɛl, ")
    assert "θɹˈiː pɔɪnt fˈaɪv" in found
    for odd in (
        "привет мир, hello.",
        "你好，世界。",
        "[[h@loU]] there",
        "x" * 200,
        "🙂, 🙂.",
        "<b>bold</b>",
        "-v fr --help",
    ):
        assert espeak.phonemes(odd)
    assert espeak.phonemes("Hello.") == espeak.phonemes("Hello."), "one text has no effect on the next"
    assert shutil.which("espeak-ng")
