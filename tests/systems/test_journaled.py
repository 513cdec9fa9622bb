"""Files transcribed with a journal, by a system whose text of a file is its name, in batches of two."""

import json
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tritone.audio.files import Selection
from tritone.errors import AudioError, InputError
from tritone.result import TranscriptResult
from tritone.systems import transcribe_journaled
from tritone.transcript import Span, Transcript


class Names:
    """A system; `asked`: the files of each call, `bad`: those that fail."""

    name, mode, concurrency, batch = "names", "offline", 2, 2

    def __init__(self, *bad: str) -> None:
        self.asked: list[list[str]] = []
        self._bad = bad

    def describe(self) -> Mapping[str, str]:
        return {"kind": "names"}

    def prepare(self, *, warm_up: bool = False) -> None: ...

    def close(self) -> None: ...

    def run(self, paths: Iterable[Any], on_partial: Any = None) -> Generator[TranscriptResult, None, None]:
        names = [Path(path).name for path in paths]
        self.asked.append(names)
        for index, name in enumerate(names):
            if name in self._bad:
                yield TranscriptResult(index=index, source=name, error=AudioError(f"{name} is no audio"))
            else:
                word = Span(name, 0.1234567, 0.5, 0.9)
                yield TranscriptResult(index=index, source=name, value=Transcript(text=name, words=(word,)))


FILES = ["a", "b", "c", "d", "e"]


def test_what_the_journal_has_comes_first_and_what_was_cut_off_is_computed_in_its_whole_batch(tmp_path: Path) -> None:
    journal, system = tmp_path / "journal", Names("b")
    first = list(transcribe_journaled(system, FILES, journal))
    assert [(each.index, each.source) for each in first] == list(enumerate(FILES))
    assert first[0].words[0].start_s == 0.123
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:5]))  # two lines of its own, then a, b and c
    again = Names()
    found = list(transcribe_journaled(again, FILES, journal))
    assert [each.text for each in found] == ["a", "c", "d", "e", "b"]
    assert [each.index for each in found] == [0, 2, 3, 4, 1]
    assert again.asked == [["c", "d", "e"], ["b"]]
    assert found[0].value == first[0].value
    done = Names()
    assert {each.text for each in transcribe_journaled(done, FILES, journal)} == set(FILES)
    assert done.asked == []


def test_another_channel_and_other_conditions_are_another_run(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    list(transcribe_journaled(Names(), [Selection("a", channel=1)], journal, conditions={"details": "True"}))
    with pytest.raises(InputError, match="ids, paths or audio files have changed"):
        transcribe_journaled(Names(), [Selection("a", channel=2)], journal, conditions={"details": "True"})
    with pytest.raises(InputError, match="the system's details was 'True' and is 'False'"):
        transcribe_journaled(Names(), [Selection("a", channel=1)], journal, conditions={"details": "False"})


@pytest.mark.parametrize("record", [{"id": "0", "lines": ["a"]}, {"id": "9", "transcript": {"text": "a"}}, {"id": "x"}])
def test_a_record_that_is_no_transcript_is_refused(tmp_path: Path, record: dict[str, Any]) -> None:
    journal = tmp_path / "journal"
    list(transcribe_journaled(Names(), ["a"], journal))
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(InputError, match="has a record of no transcript"):
        list(transcribe_journaled(Names(), ["a"], journal))
