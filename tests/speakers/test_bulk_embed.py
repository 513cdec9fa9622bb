"""Embedding a corpus: with a system that does as it is told, and with the toy speaker in this process."""

import errno
import json
import threading
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile

from toy_speaker import SAMPLE_RATE, toy_embedding, toy_voice, write_toy_speaker
from tritone.errors import (
    AudioError,
    BundleError,
    InputError,
    OperatorError,
    ServerTimeoutError,
    ServerUnreachableError,
    TritoneError,
)
from tritone.result import EmbeddingResult
from tritone.speakers import archive_writer
from tritone.speakers.archive import read_vectors
from tritone.speakers.bulk import MAX_RETRIES, BulkStatus, Recording, embed_corpus
from tritone.systems import System, open_embedder_system


class Told:
    """A system whose outcomes are told: the path of a file is a number, or what shall happen."""

    name = "told"
    dim = None
    batch = 1

    def __init__(self, **described: str) -> None:
        self.described = described
        self.prepared = 0
        self.asked: list[str] = []
        self.raises: dict[str, BaseException] = {}
        self.fails: dict[str, TritoneError] = {}

    def describe(self) -> Mapping[str, str]:
        return {"kind": "told", **self.described}

    def prepare(self, *, warm_up: bool = False) -> None:
        self.prepared += 1

    def run(self, paths: Iterable[str]) -> Generator[EmbeddingResult, None, None]:
        numbered = list(enumerate(paths))
        for index, path in numbered[1::2] + numbered[::2]:  # in any order
            self.asked.append(path)
            if path in self.raises:
                raise self.raises[path]
            error = self.fails.get(path)
            vector = None if error else np.full(3, float(path), np.float32)
            yield EmbeddingResult(index=index, source=path, value=vector, error=error, audio_s=2)

    def close(self) -> None:
        pass


def recordings(*numbers: float) -> list[Recording]:
    return [Recording(id=f"u{number}", path=str(number)) for number in numbers]


def embedded(folder: Path) -> dict[str, float]:
    vectors = read_vectors(folder / "xvector.scp")
    return {key: float(row[0]) for key, row in zip(vectors.keys, vectors.matrix, strict=True)}


def failures(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "failures.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_recording_has_its_vector_in_the_order_of_the_list(tmp_path: Path):
    told: list[BulkStatus] = []
    result = embed_corpus(recordings(5, 3, 4, 1), Told(), tmp_path, shard_size=3, progress=told.append)
    assert list(embedded(tmp_path).items()) == [("u5", 5), ("u3", 3), ("u4", 4), ("u1", 1)]
    assert len(list(tmp_path.glob("*.ark"))) == 2
    assert result.complete
    assert not result.failures.exists()
    assert [status.done for status in told] == [0, 1, 2, 3, 4]
    assert (told[-1].embedded, told[-1].audio_s, told[-1].total) == (4, 8, 4)
    assert told[-1].elapsed_s > 0


def test_failures_are_listed_and_another_run_tries_them_again(tmp_path: Path):
    system = Told()
    system.fails = {"2": AudioError("2 is häßlich"), "3": ServerTimeoutError("too slow")}
    result = embed_corpus(recordings(1, 2, 3), system, tmp_path)
    assert not result.complete
    assert (result.status.failed, result.status.embedded, result.first_failure) == (2, 1, "u2: 2 is häßlich")
    assert failures(tmp_path) == [
        {"id": "u2", "path": "2", "error": "2 is häßlich"},
        {"id": "u3", "path": "3", "error": "too slow"},
    ]
    del system.fails["2"]
    result = embed_corpus(recordings(1, 2, 3), system, tmp_path)
    assert system.asked[3:] == ["3", "2"]
    assert [each["id"] for each in failures(tmp_path)] == ["u3"]
    assert (result.status.reused, result.status.embedded, result.status.failed) == (1, 1, 1)
    system.fails.clear()
    assert embed_corpus(recordings(1, 2, 3), system, tmp_path).complete
    assert not (tmp_path / "failures.jsonl").exists()
    assert embedded(tmp_path) == {"u1": 1, "u2": 2, "u3": 3}


def test_a_path_that_is_no_text_is_listed_as_the_bytes_that_it_is(tmp_path: Path):
    system = Told()
    system.fails = {"\udcff": AudioError("nothing there")}
    embed_corpus([Recording(id="a", path="\udcff")], system, tmp_path)
    assert b'"path": "\xff"' in (tmp_path / "failures.jsonl").read_bytes()


def test_what_is_there_is_not_asked_for_again_and_nothing_is_opened_for_nothing(tmp_path: Path):
    embed_corpus(recordings(1, 2), Told(), tmp_path)
    system = Told()
    result = embed_corpus(recordings(2, 1), system, tmp_path)
    assert (system.prepared, system.asked) == (0, [])
    assert result.complete
    result = embed_corpus(recordings(3), system, tmp_path)
    assert result.others == 2
    assert embedded(tmp_path) == {"u3": 3, "u2": 2, "u1": 1}
    assert next(iter(embedded(tmp_path))) == "u3"


def test_an_interrupt_keeps_what_was_embedded_and_the_next_run_has_the_rest(tmp_path: Path):
    system = Told()
    system.raises = {"3": KeyboardInterrupt()}
    result = embed_corpus(recordings(1, 2, 3, 4), system, tmp_path)
    assert result.interrupted
    assert embedded(tmp_path) == {"u2": 2, "u4": 4, "u1": 1}
    system = Told()
    assert embed_corpus(recordings(1, 2, 3, 4), system, tmp_path).complete
    assert system.asked == ["3"]
    assert list(embedded(tmp_path)) == ["u1", "u2", "u3", "u4"]


def test_what_failed_before_an_interrupt_is_listed_before_what_fails_after_it(tmp_path: Path):
    """The list is that of a run that nothing has cut off."""
    system = Told()
    system.batch = 2
    system.fails = {"1": AudioError("no"), "5": AudioError("no"), "6": AudioError("no")}
    system.raises = {"4": KeyboardInterrupt()}
    corpus = recordings(1, 2, 4, 3, 5, 6)
    for _ in range(2):
        embed_corpus(corpus, system, tmp_path)
        system.raises.clear()
    # The rest is asked for at once, every second one first.
    assert [each["id"] for each in failures(tmp_path)] == ["u1", "u6", "u5"]


def test_a_server_that_goes_away_stops_the_run_and_is_no_failure_of_a_recording(tmp_path: Path):
    system = Told()
    system.fails = {"4": ServerUnreachableError("gone")}
    result = embed_corpus(recordings(1, 2, 3, 4), system, tmp_path)
    assert str(result.stopped) == "gone"
    assert system.asked == ["2", "4"]
    assert (result.status.done, result.status.failed, result.complete) == (1, 0, False)
    assert embedded(tmp_path) == {"u2": 2}


def test_a_server_that_refuses_a_hundred_times_in_a_row_is_not_asked_for_ever(tmp_path: Path):
    system = Told()
    system.fails = {str(number): ServerTimeoutError("too slow") for number in range(MAX_RETRIES + 50)}
    result = embed_corpus(recordings(*range(MAX_RETRIES + 50)), system, tmp_path)
    assert isinstance(result.stopped, ServerTimeoutError)
    assert result.status.failed == MAX_RETRIES


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_a_failure(tmp_path: Path, number: float):
    result = embed_corpus(recordings(1, number), Told(), tmp_path)
    assert embedded(tmp_path) == {"u1": 1}
    assert "not finite" in result.first_failure


def test_what_breaks_in_the_middle_leaves_lists_of_what_is_there(tmp_path: Path):
    system = Told()
    system.raises = {"1": RuntimeError("a bug")}
    with pytest.raises(RuntimeError, match="a bug"):
        embed_corpus(recordings(1, 2), system, tmp_path)
    assert embedded(tmp_path) == {"u2": 2}


def test_a_full_disk_is_said_and_what_was_written_before_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = archive_writer._Appended.write

    def write(self: archive_writer._Appended, data: bytes) -> None:
        if self.end == 50 and data.startswith(b"u1 "):  # the third of 25 bytes
            self._file.write(data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(archive_writer._Appended, "write", write)
        with pytest.raises(OperatorError, match=r"cannot write .*xvector_000.ark: No space left on device"):
            embed_corpus(recordings(1, 2, 3, 4), Told(), tmp_path)
    assert embedded(tmp_path) == {"u2": 2, "u4": 4}
    assert len(read_vectors(tmp_path / "xvector_000.ark").keys) == 2
    assert embed_corpus(recordings(1, 2, 3, 4), Told(), tmp_path).complete


def test_a_system_that_cannot_be_used_leaves_the_list_of_failures_as_it_was(tmp_path: Path):
    system = Told()
    system.fails = {"2": AudioError("bad")}
    embed_corpus(recordings(1, 2), system, tmp_path)
    system.prepare = lambda warm_up=False: (_ for _ in ()).throw(ValueError("no such device"))  # type: ignore[method-assign, misc]
    with pytest.raises(InputError, match="told: no such device"):
        embed_corpus(recordings(1, 2), system, tmp_path)
    assert [each["id"] for each in failures(tmp_path)] == ["u2"]


def test_repeated_and_hostile_ids_are_refused_before_anything_is_made(tmp_path: Path):
    for wrong, complaint in ((recordings(1, 1), "u1 comes twice"), ([Recording(id="a b", path="1")], "has a space")):
        with pytest.raises(InputError, match=complaint):
            embed_corpus(wrong, Told(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_model_or_other_options_are_refused(tmp_path: Path):
    embed_corpus(recordings(1), Told(window_s="2"), tmp_path)
    with pytest.raises(InputError, match="window_s was '2' and is not given"):
        embed_corpus(recordings(1), Told(), tmp_path)
    embed_corpus(recordings(2), Told(), tmp_path, force=True)
    assert embedded(tmp_path) == {"u2": 2}


# The systems.


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_speaker(tmp_path_factory.mktemp("bundles") / "speaker")


@pytest.fixture
def voices(tmp_path: Path) -> dict[str, np.ndarray]:
    """Files of different lengths and what is in them."""
    found = {}
    for number in range(7):
        waveform = toy_voice([1, number, 2], samples=1600 + 700 * (number * 3 % 7), seed=number)
        found[str(tmp_path / f"{number}.wav")] = waveform
        soundfile.write(tmp_path / f"{number}.wav", waveform, SAMPLE_RATE, subtype="FLOAT")
    return found


def opened(spec: str) -> System[EmbeddingResult]:
    system = open_embedder_system(spec)
    system.prepare(warm_up=True)
    return system


def test_a_bundle_embeds_files_of_any_length_each_as_if_it_were_alone(bundle: Path, voices: dict[str, np.ndarray]):
    system = opened(f"{bundle},threads=1")
    outcomes = list(system.run(iter(voices)))
    assert sorted(each.index for each in outcomes) == list(range(7))
    for each in outcomes:
        assert each.source == list(voices)[each.index]
        assert each.embedding is not None
        np.testing.assert_allclose(each.embedding, toy_embedding(voices[each.source]), atol=1e-6)
        assert each.audio_s == len(voices[each.source]) / SAMPLE_RATE
    assert system.name == f"{bundle.name},threads=1"
    system.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        next(iter(system.run([])))


def test_bad_files_have_their_error_and_the_others_their_vector(
    bundle: Path, voices: dict[str, np.ndarray], tmp_path: Path
):
    soundfile.write(tmp_path / "short.wav", np.zeros(100), SAMPLE_RATE)
    paths = [str(tmp_path / "short.wav"), *voices, "absent.wav", "nul\0.wav", str(tmp_path)]
    outcomes = {each.source: each for each in opened(f"{bundle},threads=1").run(paths)}
    assert len(outcomes) == len(paths)
    assert "an embedding needs at least 0.050 s" in str(outcomes[paths[0]].error)
    for path in paths[-3:]:
        assert isinstance(outcomes[path].error, AudioError)
    assert all(outcomes[path].embedding is not None for path in voices)


def test_a_runtime_that_breaks_on_one_file_breaks_that_one_alone(
    bundle: Path, voices: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
):
    from tritone.pipelines.embedding import EmbeddingPipeline

    real, bad = EmbeddingPipeline._embed, len(voices[next(iter(voices))])

    def fragile(self: EmbeddingPipeline, jobs):  # type: ignore[no-untyped-def]
        if any(len(window) == bad for windows in jobs for window in windows):
            raise RuntimeError("no memory")
        return real(self, jobs)

    monkeypatch.setattr(EmbeddingPipeline, "_embed", fragile)
    outcomes = {each.source: each for each in opened(f"{bundle},threads=1").run(voices)}
    broken = outcomes.pop(next(iter(voices)))
    assert isinstance(broken.error, OperatorError)
    assert "RuntimeError: no memory" in str(broken.error)
    assert all(each.error is None for each in outcomes.values())


def test_windows_and_other_options_of_a_bundle_are_told_by_those_that_decide_the_vectors(
    bundle: Path, voices: dict[str, np.ndarray], tmp_path: Path
):
    whole, again = opened(f"{bundle},threads=1"), opened(f"other={bundle},device=cpu")
    windows = opened(f"{bundle},window_s=0.05,shift_s=0.025")
    assert whole.describe() == again.describe()
    assert dict(windows.describe()) == {**whole.describe(), "window_s": "0.05", "shift_s": "0.025"}
    path, waveform = next(iter(voices.items()))
    (outcome,) = windows.run([path])
    means = [toy_embedding(waveform[start : start + 800]) for start in (0, 400, 800)]
    assert outcome.embedding is not None
    np.testing.assert_allclose(outcome.embedding, np.mean(means, axis=0), atol=1e-6)


def test_what_makes_no_sense_is_said_when_a_system_is_opened(bundle: Path, toy_bundle: Path):
    with pytest.raises(ValueError, match=r"unknown beam; a bundle takes device, threads, .*window_s, shift_s"):
        open_embedder_system(f"{bundle},beam=3")
    with pytest.raises(ValueError, match="unknown device; a served model takes timeout_s, concurrency, window_s, shi"):
        open_embedder_system("grpc://localhost:1/speaker,device=cpu")
    with pytest.raises(ValueError, match="window_s must be a number, got 'two'"):
        open_embedder_system(f"{bundle},window_s=two")
    with pytest.raises(BundleError, match="makes no embeddings"):
        open_embedder_system(str(toy_bundle))
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        open_embedder_system("grpc://localhost:1/x,concurrency=-1")


def test_leaving_early_ends_the_threads_that_read(voices: dict[str, np.ndarray], bundle: Path):
    before = set(threading.enumerate())
    outcomes = opened(f"{bundle},threads=1").run(path for _ in range(10_000) for path in voices)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive()
