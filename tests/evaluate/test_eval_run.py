"""Evaluating a system: scores, failures, resuming, interrupts, memory. The systems here answer from a dictionary."""

import gc
import json
import tracemalloc
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import jiwer
import pytest

from fresh import in_fresh_process
from tritone.corpus.dataset import Utterance
from tritone.errors import InputError, OperatorError, ServerTimeoutError, TritoneError
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.result import Evaluation, Report
from tritone.evaluate.run import Status, evaluate
from tritone.evaluate.series import evaluate_each, read_baseline
from tritone.report.stamp import Stamp
from tritone.result import Partial, TranscriptResult
from tritone.systems.streams import PartialListener
from tritone.systems.system import Mode
from tritone.transcript import Transcript

REFERENCES = {
    "a": "one two three",
    "b": "four five",
    "c": "six",
    "d": "seven eight nine ten",
}
PLAIN = Normalizer()
Answer = str | TritoneError | type[BaseException]


class FakeSystem:
    """Answers what it is told to: a text, an error, or by raising; notes what it was sent."""

    name = "fake"
    mode: Mode = "offline"
    concurrency = 4

    def __init__(
        self,
        answers: Mapping[str, Answer] | Callable[[str], Answer],
        *,
        version: str = "1",
        partials: Callable[[str], tuple[Partial, ...]] = lambda text: (),
        backwards: bool = False,
    ) -> None:
        self.sent: list[str] = []
        self.prepared = 0
        self.closed = 0
        self.outcomes: list[weakref.ref[TranscriptResult]] = []
        self._answer = answers if callable(answers) else answers.__getitem__
        self._version = version
        self._partials = partials
        self._backwards = backwards

    def describe(self) -> Mapping[str, str]:
        return {"kind": "fake", "version": self._version, "mode": self.mode}

    def prepare(self, *, warm_up: bool = False) -> None:
        self.prepared += 1

    def run(
        self, paths: Iterable[str], on_partial: PartialListener | None = None
    ) -> Generator[TranscriptResult, None, None]:
        numbered = list(enumerate(paths)) if self._backwards else enumerate(paths)
        for index, path in reversed(numbered) if isinstance(numbered, list) else numbered:
            self.sent.append(path)
            answer = self._answer(path)
            if isinstance(answer, type):
                raise answer
            if isinstance(answer, TritoneError):
                outcome = TranscriptResult(index=index, source=path, error=answer, audio_s=2.0)
            else:
                outcome = TranscriptResult(
                    index=index,
                    source=path,
                    value=Transcript(answer),
                    audio_s=2.0,
                    latency_s=0.5,
                    compute_s=0.25,
                    partials=self._partials(answer),
                )
            self.outcomes.append(weakref.ref(outcome))
            yield outcome
            del outcome

    def close(self) -> None:
        self.closed += 1


def utterances(references: Mapping[str, str] = REFERENCES) -> list[Utterance]:
    """Their audio files are named by their ids; nothing reads them here."""
    return [Utterance(name, Path(name), text) for name, text in references.items()]


def run(system: FakeSystem, references: Mapping[str, str] = REFERENCES, **options: Any) -> Evaluation:
    return evaluate(utterances(references), system, PLAIN, **options)


def texts(evaluation: Evaluation) -> dict[str, str | None]:
    return {row.id: None if row.score.error else row.score.hypothesis for row in evaluation.rows}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def stamp() -> Stamp:
    return Stamp(
        command="x", date="d", commit="c", processor="p", cores=1, memory_gib=1.0, system="s", versions={}, load=0.0
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_texts_are_scored_in_the_order_of_the_set_whatever_order_they_come_in(backwards: bool):
    said = {"a": "one too three", "b": "five", "c": "six and more", "d": "Seven, eight nine ten!"}
    found = run(FakeSystem(said, backwards=backwards))
    assert [row.id for row in found.rows] == ["a", "b", "c", "d"]
    counts = found.score.words
    assert (counts.substitutions, counts.deletions, counts.insertions, counts.reference_length) == (1, 1, 2, 10)
    theirs = jiwer.wer(list(REFERENCES.values()), [*list(said.values())[:3], "seven eight nine ten"])
    assert counts.rate == pytest.approx(theirs)
    assert found.score.sentence_accuracy == 0.25
    assert found.audio_s == 8.0
    assert found.concurrency == "4"
    assert found.latency_s(50) == 0.5
    assert found.complete


def test_a_failed_utterance_counts_as_deleted_and_is_reported_as_failed():
    found = run(FakeSystem({**REFERENCES, "d": ServerTimeoutError("no answer within 1 s")}))
    (failure,) = found.failures
    assert (failure.id, failure.score.error) == ("d", "no answer within 1 s")
    assert found.score.words.rate == 4 / 10
    assert found.recognised.words.rate == 0.0
    assert found.audio_s == 6.0  # what was not recognised was not worked through
    assert found.summary()["failures"] == 1


def test_a_system_that_says_nothing_has_all_words_deleted_and_no_failures():
    found = run(FakeSystem(dict.fromkeys(REFERENCES, "")))
    assert (found.score.words.deletions, found.score.words.rate, found.failures) == (10, 1.0, [])


def test_a_system_that_drops_utterances_does_not_get_away_with_it():
    class Forgetful(FakeSystem):
        def run(
            self, paths: Iterable[str], on_partial: PartialListener | None = None
        ) -> Generator[TranscriptResult, None, None]:
            for outcome in super().run(paths):
                if outcome.index != 1:
                    yield outcome

    found = run(Forgetful(REFERENCES))
    assert [row.id for row in found.failures] == ["b"]
    assert "no answer" in (found.failures[0].score.error or "")
    assert found.score.words.deletions == 2


def test_a_system_that_answers_twice_is_counted_once():
    class Stutter(FakeSystem):
        def run(
            self, paths: Iterable[str], on_partial: PartialListener | None = None
        ) -> Generator[TranscriptResult, None, None]:
            for outcome in super().run(paths):
                yield outcome
                yield outcome

    seen: list[Status] = []
    found = run(Stutter(REFERENCES), progress=seen.append)
    assert len(found.rows) == 4
    assert found.score.words.reference_length == 10
    assert seen[-1] == Status(done=4, total=4, failed=0, words=found.score.words)


def test_progress_is_told_before_the_first_and_after_every_utterance():
    seen: list[Status] = []
    run(FakeSystem({**REFERENCES, "b": InputError("bad"), "c": "sex"}), progress=seen.append)
    assert [(each.done, each.failed, each.words.errors) for each in seen] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 2),
        (3, 1, 3),
        (4, 1, 3),
    ]
    assert {each.total for each in seen} == {4}


@pytest.mark.parametrize("with_journal", [False, True])
def test_an_interrupt_gives_what_is_there(journal: Path, with_journal: bool):
    system = FakeSystem({**REFERENCES, "c": KeyboardInterrupt})
    found = run(system, journal=journal if with_journal else None)
    assert not found.complete
    assert texts(found) == {"a": "one two three", "b": "four five"}
    assert found.total == 4
    assert found.score.words.reference_length == 5


def test_every_result_is_on_the_disk_before_the_next_is_waited_for(journal: Path):
    written: list[tuple[int, int]] = []
    run(
        FakeSystem(REFERENCES),
        journal=journal,
        progress=lambda status: written.append((status.done, journal.read_text(encoding="utf-8").count('"id"'))),
    )
    assert written == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_finished_journal_is_written_over_without_ado(journal: Path):
    told: list[str] = []
    for _ in range(2):
        run(FakeSystem(REFERENCES), journal=journal, notify=told.append)
    assert told == []
    assert journal.read_text(encoding="utf-8").count('"id"') == 4
    assert list(journal.parent.iterdir()) == [journal]


def test_an_interrupt_in_the_callers_own_progress_gives_up_what_is_in_flight():
    left: list[bool] = []

    class Watched(FakeSystem):
        def run(
            self, paths: Iterable[str], on_partial: PartialListener | None = None
        ) -> Generator[TranscriptResult, None, None]:
            try:
                yield from super().run(paths)
            finally:
                left.append(True)

    def interrupt(status: Status) -> None:
        if status.done == 2:
            raise KeyboardInterrupt

    found = run(Watched(REFERENCES), progress=interrupt)
    assert (found.complete, len(found.rows), left) == (False, 2, [True])


def test_a_resumed_run_sends_what_is_left_and_ends_like_one_that_was_never_interrupted(journal: Path):
    said: dict[str, Answer] = {"a": "one", "b": "for five", "c": "six", "d": "seven ate nine ten"}
    run(FakeSystem({**said, "c": KeyboardInterrupt}), journal=journal)
    second = FakeSystem(said)
    resumed = run(second, journal=journal, resume=True)
    assert second.sent == ["c", "d"]
    assert resumed.complete
    assert resumed.reused == 2
    whole = run(FakeSystem(said))
    assert [row.score for row in resumed.rows] == [row.score for row in whole.rows]
    assert resumed.score == whole.score


def test_a_resumed_run_tries_failures_again(journal: Path):
    run(FakeSystem({**REFERENCES, "b": ServerTimeoutError("slow")}), journal=journal)
    again = FakeSystem(REFERENCES)
    seen: list[Status] = []
    found = run(again, journal=journal, resume=True, progress=seen.append)
    assert again.sent == ["b"]
    assert [(each.done, each.failed) for each in seen] == [(3, 0), (4, 0)]
    assert found.failures == []
    assert found.score.words.errors == 0


def test_a_finished_journal_is_enough_to_score_again_without_the_system(journal: Path):
    run(FakeSystem({**REFERENCES, "a": "One two THREE"}), journal=journal)
    idle = FakeSystem({})
    strict = Normalizer(Normalization(case="keep"))
    found = evaluate(utterances(), idle, strict, journal=journal, resume=True)
    assert (idle.sent, idle.prepared) == ([], 0)
    assert found.score.words.substitutions == 2
    assert found.concurrencies == [4]


def test_corrected_references_need_no_new_run(journal: Path):
    run(FakeSystem(REFERENCES), journal=journal)
    found = run(FakeSystem({}), {**REFERENCES, "a": "one two"}, journal=journal, resume=True)
    assert found.score.words.insertions == 1


def test_the_time_of_all_sessions_counts(journal: Path):
    run(FakeSystem({**REFERENCES, "c": KeyboardInterrupt}), journal=journal)
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if "elapsed_s" in line:
            line["elapsed_s"] = 10.0
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = run(FakeSystem(REFERENCES), journal=journal, resume=True)
    assert 10.0 < found.wall_s < 20.0
    assert found.rtf == pytest.approx(found.wall_s / 8.0)
    assert found.rtfx == pytest.approx(8.0 / found.wall_s)


def test_a_line_that_was_cut_by_the_end_of_the_process_is_done_again(journal: Path):
    run(FakeSystem(REFERENCES), journal=journal)
    content = journal.read_bytes()
    journal.write_bytes(content[:-20])
    again = FakeSystem(REFERENCES)
    run(again, journal=journal, resume=True)
    assert again.sent == ["d"]
    for line in journal.read_text(encoding="utf-8").splitlines():
        json.loads(line)


def test_a_journal_that_is_cut_anywhere_loses_no_more_than_its_last_line(journal: Path):
    said: dict[str, Answer] = {**REFERENCES, "b": "vier fünf 五"}
    run(FakeSystem(said), journal=journal)
    content = journal.read_bytes()
    for length in range(0, len(content) + 1, 7):
        journal.write_bytes(content[:length])
        found = run(FakeSystem(said), journal=journal, resume=True)
        assert texts(found) == said
        assert content[:length].rpartition(b"\n")[0] in journal.read_bytes()


def test_a_journal_of_another_system_is_refused_with_the_difference(journal: Path):
    run(FakeSystem(REFERENCES), journal=journal)
    before = journal.read_bytes()
    with pytest.raises(InputError, match=r"the system's version was '1' and is '2'.*Remove it to start again"):
        run(FakeSystem(REFERENCES, version="2"), journal=journal, resume=True)
    assert journal.read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [
        {**REFERENCES, "e": "eleven"},
        {name: REFERENCES[name] for name in ("a", "b", "c")},
        {name: REFERENCES[name] for name in ("b", "a", "c", "d")},
    ],
)
def test_a_journal_of_other_utterances_is_refused(journal: Path, changed: dict[str, str]):
    run(FakeSystem(REFERENCES), journal=journal)
    with pytest.raises(InputError, match="ids, paths or audio files have changed"):
        run(FakeSystem(changed), changed, journal=journal, resume=True)


def test_an_audio_file_that_has_changed_makes_the_journal_useless(journal: Path, tmp_path: Path):
    audio = tmp_path / "a.wav"
    audio.write_bytes(b"RIFF")
    (only,) = [Utterance("a", audio, "one")]
    evaluate([only], FakeSystem({str(audio): "one"}), PLAIN, journal=journal)
    audio.write_bytes(b"RIFFRIFF")
    with pytest.raises(InputError, match="audio files have changed"):
        evaluate([only], FakeSystem({str(audio): "one"}), PLAIN, journal=journal, resume=True)


@pytest.mark.parametrize(
    "content",
    [
        b"{}\n",
        b"[]\n",
        b"not json\n",
        b"\xff\xfe\n",
        b'{"journal": 99}\n',
        b'{"journal": 1, "inputs": "", "system": []}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=["empty", "list", "text", "bytes", "other version", "no system", "deep"],
)
def test_a_file_that_is_no_journal_is_neither_gone_on_with_nor_written_over(journal: Path, content: bytes):
    journal.write_bytes(content)
    with pytest.raises(InputError, match=r"journal\.jsonl"):
        run(FakeSystem(REFERENCES), journal=journal, resume=True)
    assert journal.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        "dear diary\n",
        "no end of line",
        '{"journal": 1, "utterances": 1e999}\n',
        '{"id": "a", "audio_filepath": "a.wav"}\n',
        "{}\n",
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_somebody_elses_file_is_not_written_over(journal: Path, content: str, resume: bool):
    journal.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"no(t a)? (journal|line of a journal)"):
        run(FakeSystem(REFERENCES), journal=journal, resume=resume)
    assert journal.read_text(encoding="utf-8") == content


def test_a_journal_that_another_run_is_writing_is_left_alone(journal: Path):
    second = FakeSystem(REFERENCES)

    def meddle(status: Status) -> None:
        if status.done == 2:
            for resume in (False, True):
                with pytest.raises(InputError, match="another process is writing the journal"):
                    run(second, journal=journal, resume=resume)

    first = run(FakeSystem(REFERENCES), journal=journal, progress=meddle)
    assert texts(first) == REFERENCES
    assert second.sent == []
    assert run(second, journal=journal, resume=True).reused == 4


@pytest.mark.parametrize("replaced", [False, True])
def test_a_journal_that_is_put_aside_while_it_is_being_opened_is_left_alone(
    journal: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
):
    def put_aside(file: object) -> None:
        journal.rename(f"{journal}.old")
        if replaced:
            journal.write_text("theirs", encoding="utf-8")

    monkeypatch.setattr("tritone.systems.journal._lock", put_aside)
    with pytest.raises(InputError, match="another process is writing the journal"):
        run(FakeSystem(REFERENCES), journal=journal)
    assert not replaced or journal.read_text(encoding="utf-8") == "theirs"


def test_a_stream_that_broke_has_no_stability(journal: Path):
    class Broken(FakeSystem):
        mode: Mode = "streaming"

        def run(
            self, paths: Iterable[str], on_partial: PartialListener | None = None
        ) -> Generator[TranscriptResult, None, None]:
            answers = (Partial(text="one", spoken_s=1.0, answered_s=1.5),)
            for index, path in enumerate(paths):
                yield TranscriptResult(index=index, source=path, error=ServerTimeoutError("slow"), partials=answers)

    found = run(Broken({}), {"a": "one"})
    assert [row.stability for row in found.rows] == [None]
    assert found.stability is None


def test_a_journal_takes_room_for_what_partial_results_add_and_not_for_all_they_repeat(journal: Path):
    words = [f"word{number}" for number in range(300)]
    grown = [" ".join(words[: number + 1]) for number in range(len(words))]
    partials = tuple(Partial(text=text, spoken_s=1.0, answered_s=2.0) for text in [*grown, "word0 other", ""])
    run(FakeSystem({"a": ""}, partials=lambda text: partials), {"a": ""}, journal=journal)
    assert journal.stat().st_size < 50 * len(partials)  # all texts are 350 kB
    again = run(FakeSystem({}), {"a": ""}, journal=journal, resume=True)
    stability = again.stability
    assert stability is not None
    assert (stability.partials, stability.unstable_words, stability.revisions) == (301, 299 + 2, 2)


def test_an_unfinished_journal_is_kept_when_a_run_starts_again(journal: Path):
    run(FakeSystem({**REFERENCES, "c": KeyboardInterrupt}), journal=journal)
    unfinished = journal.read_bytes()
    told: list[str] = []
    system = FakeSystem(REFERENCES)
    run(system, journal=journal, notify=told.append)
    assert system.sent == ["a", "b", "c", "d"]
    assert Path(f"{journal}.old").read_bytes() == unfinished
    assert len(told) == 1
    assert "--resume" in told[0]


def test_a_folder_that_is_not_there_is_told_in_one_sentence(tmp_path: Path):
    with pytest.raises(OperatorError, match="cannot write the journal"):
        run(FakeSystem(REFERENCES), journal=tmp_path / "absent" / "journal.jsonl")
    with pytest.raises(InputError, match="is a folder"):
        run(FakeSystem(REFERENCES), journal=tmp_path)


def test_a_system_whose_options_make_no_sense_is_named():
    class Picky(FakeSystem):
        def prepare(self, *, warm_up: bool = False) -> None:
            raise ValueError("device must be cpu, got 'tpu'")

    with pytest.raises(InputError, match="fake: device must be cpu, got 'tpu'"):
        run(Picky(REFERENCES))


def test_systems_that_turn_out_to_have_one_name_can_still_be_told_apart(tmp_path: Path):
    class Served(FakeSystem):
        """Learns its name from its server."""

        def prepare(self, *, warm_up: bool = False) -> None:
            self.name = "fake"

    served, second = Served(REFERENCES), FakeSystem({**REFERENCES, "b": "four"})
    served.name = "grpc://localhost:8001"
    series = evaluate_each(utterances(), [served, second], Normalization())
    found = series.report.evaluations
    assert series.failure is None
    assert [each.name for each in found] == ["fake", "fake #2"]
    assert series.comparison is not None
    assert [change.words and change.words.delta for change in series.comparison.changes] == [None, 0.1]
    assert series.report.title == f"fake · fake #2 on {len(utterances())} utterances"
    assert series.problems(max_wer_increase=10.5) == []
    (problem,) = series.problems(max_wer_increase=5.0)
    assert "fake #2" in problem
    series.save(tmp_path / "result.json")
    assert read_baseline(tmp_path / "result.json", Normalization(), utterances()).score.words == found[0].score.words


def test_ids_that_come_twice_and_missing_references_are_refused():
    twice = [Utterance("a", Path("a"), "x"), Utterance("a", Path("b"), "y")]
    with pytest.raises(ValueError, match="'a' comes twice"):
        evaluate(twice, FakeSystem({}), PLAIN)
    with pytest.raises(InputError, match="b: there is no reference"):
        evaluate([Utterance("b", Path("b"))], FakeSystem({}), PLAIN)
    with pytest.raises(ValueError, match="needs a journal"):
        evaluate([], FakeSystem({}), PLAIN, resume=True)


def test_partial_results_are_measured_and_not_kept(journal: Path):
    def partials(text: str) -> tuple[Partial, ...]:
        return (
            Partial(text="wrong", spoken_s=1.0, answered_s=1.25),
            Partial(text=text, spoken_s=2.0, answered_s=2.5, is_final=True),
        )

    class Streaming(FakeSystem):
        mode: Mode = "streaming"

    system = Streaming({"a": "one two three"}, partials=partials)
    found = run(system, {"a": "one two three"}, journal=journal)
    (row,) = found.rows
    assert row.stability is not None
    assert (row.stability.partials, row.stability.unstable_words) == (1, 1)
    assert (row.stability.first_partial_s, row.stability.final_s) == (1.25, 0.5)
    again = run(Streaming({}), {"a": "one two three"}, journal=journal, resume=True)
    assert again.rows == found.rows
    assert again.summary()["streaming"]["unstable_ratio"] == pytest.approx(1 / 3)


def memory_of_a_run(count: int) -> tuple[int, int, int, int]:
    """Rows of a run over `count` utterances with long partials, outcomes that live on, bytes left, bytes at most."""
    many = {f"utterance-{number}": f"word{number % 7} and some more" for number in range(count)}
    long = " ".join(["y" * 60] * 20)

    def partials(text: str) -> tuple[Partial, ...]:
        return tuple(Partial(text=f"{long} {n}", spoken_s=n, answered_s=n) for n in range(5))

    system = FakeSystem(many, partials=partials)
    tracemalloc.start()
    found = run(system, many)
    gc.collect()
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return len(found.rows), sum(each() is not None for each in system.outcomes), after, peak


@pytest.mark.slow
def test_thousands_of_utterances_leave_no_audio_no_outcomes_and_no_partials_behind():
    rows, outcomes, left, peak = in_fresh_process(memory_of_a_run, 1000)
    assert (rows, outcomes) == (1000, 0)
    # A text, its alignment and some times: 1.8 kB were measured. The partials of an utterance have 9 kB.
    assert left / 1000 < 4000
    assert peak / 1000 < 5000


def test_a_report_that_is_read_again_says_the_same(tmp_path: Path, stamp: Stamp):
    found = run(FakeSystem({**REFERENCES, "b": InputError("bad"), "c": "sick's"}))
    Report(stamp=stamp, evaluations=[found]).save(tmp_path / "r.json")
    (again,) = Report.read(tmp_path / "r.json").evaluations
    assert [row.score for row in again.rows] == [row.score for row in found.rows]
    assert again.summary() == found.summary()
    kept = Report.read(tmp_path / "r.json", Normalization(units="characters")).evaluations[0]
    assert kept.score.words.reference_length > found.score.words.reference_length


def test_the_json_of_a_report_has_a_schema_every_row_and_no_number_that_json_lacks(tmp_path: Path, stamp: Stamp):
    found = run(FakeSystem({"a": "noise", "b": "x"}), {"a": "", "b": ""})
    assert found.score.words.rate == float("inf")
    Report(stamp=stamp, evaluations=[found]).save(tmp_path / "r.json")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    fields = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert (fields["kind"], fields["schema"]) == ("tritone evaluation", 1)
    (system,) = fields["systems"]
    assert system["summary"]["wer"] is None
    assert system["utterances"][0]["alignment"] == [["insertion", "", "noise"]]
    assert fields["normalization"]["case"] == "lower"
    assert fields["stamp"]["command"] == "x"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[]", "not a result"),
        ("{}", "not a result"),
        ("nonsense", "not a result"),
        pytest.param("[" * 100_000, "not a result", id="deep"),
        ('{"kind": "tritone evaluation", "schema": 99}', "has schema 99"),
        ('{"kind": "tritone evaluation", "schema": 1}', "normalization"),
    ],
)
def test_a_file_that_is_no_report_is_refused_with_its_name(tmp_path: Path, content: str, complaint: str):
    (tmp_path / "r.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        Report.read(tmp_path / "r.json")
    with pytest.raises(InputError, match="cannot read"):
        Report.read(tmp_path / "absent.json")
