"""`tritone evaluate` and `tritone bench` against models that drop, fail, lie, stall or crawl (tests/support/liars.py).

Whatever a server does, the commands end by themselves, say what happened, and have the exit code that it deserves. Of
every three requests in a row a liar spoils one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner

from liars import NAP_S, liar_server
from toy import SAMPLE_RATE, toy_waveform
from tritone.cli.main import app
from tritone.loadtest.findings.result import Measurement, Report
from tritone.server import TritonServer

TEXTS = ["abc one", "def two", "ghi three", "jkl four", "mno five", "pqr six"]
TIMEOUT_S = 1.0
SPOILED = len(TEXTS) // 3
QUICK = ("--warmup-s", 0, "--measure-s", 0.5, "--max-windows", 1, "--processes", 1, "--timeout-s", TIMEOUT_S)
OFFLINE = ("honest", "wrong", "mute", "failing", "dropping", "stalling", "crawling")
STREAMING = ("wrong", "failing", "stalling", "crawling")


@pytest.fixture(scope="module")
def server(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with liar_server(toy_bundle, tmp_path_factory.mktemp("liars"), *OFFLINE) as running:
        yield running


@pytest.fixture(scope="module")
def streams(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with liar_server(toy_bundle, tmp_path_factory.mktemp("liars"), *STREAMING, mode="streaming") as running:
        yield running


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of recordings that an honest model transcribes without an error."""
    folder = tmp_path_factory.mktemp("speech")
    lines = []
    for number, text in enumerate(TEXTS):
        soundfile.write(folder / f"{number}.wav", toy_waveform(text), SAMPLE_RATE, subtype="FLOAT")
        lines.append(json.dumps({"audio_filepath": f"{number}.wav", "text": text}))
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "manifest.jsonl"


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def evaluate(
    server: TritonServer, model: str, speech: Path, folder: Path, *more: object
) -> tuple[int, dict[str, Any], str, str]:
    """Exit code, summary from the JSON, output, and the messages."""
    report = folder / "evaluation.json"
    target = ("--url", server.grpc_address, "--model", model, "--concurrency", 1, "--manifest", speech)
    patience = () if "--timeout-s" in more else ("--timeout-s", TIMEOUT_S)
    code, out, err = run("evaluate", *target, *patience, "--report", report, *more)
    (system,) = json.loads(report.read_text(encoding="utf-8"))["systems"]
    assert len(system["utterances"]) == len(TEXTS)
    return code, system["summary"], out, err


def bench(
    server: TritonServer, model: str, speech: Path, folder: Path, *more: object
) -> tuple[int, Measurement, str, str]:
    report = folder / "bench.json"
    target = ("--url", server.grpc_address, "--model", model, *QUICK)
    code, out, err = run("bench", *target, "--manifest", speech, "--report", report, *(more or ("--concurrency", 2)))
    (found,) = Report.read(report).measurements
    return code, found, out, err


def test_evaluate_counts_wrong_texts_as_errors_of_words(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    code, summary, out, _ = evaluate(server, "wrong", speech, tmp_path)
    assert (code, summary["failures"]) == (0, 0)
    assert summary["words"]["substitutions"] == 2 * SPOILED
    assert summary["wer"] == pytest.approx(1 / 3)
    assert "SOMETHING ELSE" in out


@pytest.mark.slow
def test_a_gate_closes_on_a_model_that_lies(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    gate = ("--concurrency", 2, "--max-wer", 10)
    assert bench(server, "wrong", speech, tmp_path, *gate)[0] == 1
    assert bench(server, "honest", speech, tmp_path, *gate)[0] == 0


def test_evaluate_counts_missing_texts_as_deleted(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    code, summary, _, _ = evaluate(server, "mute", speech, tmp_path)
    assert (code, summary["failures"]) == (0, 0)
    assert summary["words"]["deletions"] == 2 * SPOILED
    assert summary["words"]["insertions"] == summary["words"]["substitutions"] == 0


@pytest.mark.parametrize(("model", "told"), [("failing", "was one too many"), ("dropping", "no answer within 1 s")])
def test_evaluate_names_utterances_that_failed_and_counts_them_as_deleted(
    server: TritonServer, speech: Path, tmp_path: Path, model: str, told: str
) -> None:
    code, summary, out, err = evaluate(server, model, speech, tmp_path)
    assert (code, summary["failures"]) == (1, SPOILED)
    assert summary["wer"] == pytest.approx(1 / 3)
    assert summary["wer_recognised"] == 0
    assert out.count(told) == SPOILED
    assert f"{SPOILED} of {len(TEXTS)} utterances failed" in err


def test_evaluate_does_not_hang_on_a_server_that_stalls(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    code, summary, out, _ = evaluate(server, "stalling", speech, tmp_path)
    assert code == 1
    assert summary["failures"] == len(TEXTS) - 3  # it answers three requests before it falls asleep
    assert "no answer within 1 s" in out


def test_evaluate_tells_how_slow_a_server_is(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    code, summary, _, _ = evaluate(server, "crawling", speech, tmp_path)
    assert (code, summary["wer"]) == (0, 0)
    assert summary["latency_s"]["p50"] >= NAP_S


def test_bench_scores_the_texts_that_it_timed(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    # They are sent round and round. Of six, every third request would be for the same two; of five it is for each.
    five = speech.with_name("five.jsonl")
    five.write_text("".join(speech.read_text(encoding="utf-8").splitlines(keepends=True)[:5]), encoding="utf-8")
    for model in ("wrong", "mute"):
        code, found, out, _ = bench(server, model, five, tmp_path)
        assert (code, found.failed) == (0, 0)
        assert found.wer == pytest.approx(1 / 3, abs=0.05)
        assert "more than one text" in out


@pytest.mark.parametrize(
    ("model", "told"),
    [("failing", "server error (INTERNAL): request N was one too many"), ("dropping", "timeout: no answer within 1 s")],
)
def test_bench_counts_errors_by_their_message(
    server: TritonServer, speech: Path, tmp_path: Path, model: str, told: str
) -> None:
    code, found, out, err = bench(server, model, speech, tmp_path)
    assert code == 1
    assert list(found.errors) == [told]
    assert found.failed / found.requests == pytest.approx(1 / 3, abs=0.1)
    assert found.utterances == found.requests - found.failed
    assert found.wer == 0  # of those that were answered
    assert told in out
    assert f"{found.failed} of {found.requests} requests failed" in err


@pytest.mark.slow
def test_bench_ends_early_on_a_server_that_stalls(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    evaluate(server, "stalling", speech, tmp_path, "--timeout-s", 0.1)  # lest this is the first test that asks it
    code, found, out, _ = bench(server, "stalling", speech, tmp_path)
    assert code == 1
    assert found.failed == found.requests > 0
    assert (found.latency, found.utterances, found.stable) == (None, 0, False)
    assert "timeout: no answer within 1 s" in out
    assert "no request succeeded" in out


@pytest.mark.slow
def test_bench_tells_how_slow_a_server_is(server: TritonServer, speech: Path, tmp_path: Path) -> None:
    code, found, _, _ = bench(server, "crawling", speech, tmp_path)
    assert (code, found.failed) == (0, 0)
    assert found.latency is not None
    # two in flight, one at a time: each waits for the other
    assert found.latency.p50_ms >= 2 * 1000 * NAP_S * 0.95
    assert found.throughput <= 1.1 / NAP_S


def test_streams_that_fail_are_named_and_the_others_scored(streams: TritonServer, speech: Path, tmp_path: Path) -> None:
    code, summary, out, err = evaluate(streams, "failing", speech, tmp_path, "--streaming", "--chunk-ms", 200)
    assert code == 1
    assert 0 < summary["failures"] <= len(TEXTS)
    assert "was one too many" in out
    assert f"{summary['failures']} of {len(TEXTS)} utterances failed" in err


def test_streams_that_end_in_another_text_are_scored_with_it(
    streams: TritonServer, speech: Path, tmp_path: Path
) -> None:
    code, summary, _, _ = evaluate(streams, "wrong", speech, tmp_path, "--streaming", "--chunk-ms", 200)
    assert (code, summary["failures"]) == (0, 0)
    lies = summary["words"]["substitutions"] / 2
    assert lies == round(lies)
    assert summary["wer"] == pytest.approx(lies / len(TEXTS))


@pytest.mark.slow
def test_live_streams_on_a_server_that_crawls_are_not_in_time(
    streams: TritonServer, speech: Path, tmp_path: Path
) -> None:
    live = ("--streaming", "--streams", 1, "--chunk-ms", 1000 * NAP_S / 2)
    code, found, _, _ = bench(streams, "crawling", speech, tmp_path, *live)
    assert (code, found.failed) == (0, 0)
    assert found.streaming is not None
    assert found.streaming.chunk is not None
    assert found.streaming.chunk.p50_ms >= 1000 * NAP_S * 0.95
    assert found.streaming.in_time < 0.5


@pytest.mark.slow
def test_live_streams_on_a_server_that_stalls_end_early(streams: TritonServer, speech: Path, tmp_path: Path) -> None:
    live = ("--streaming", "--streams", 2, "--chunk-ms", 100)
    code, found, out, _ = bench(streams, "stalling", speech, tmp_path, *live)
    assert code == 1
    assert not found.stable
    assert "timeout: no answer within 1 s" in out
    assert "ended early" in out
