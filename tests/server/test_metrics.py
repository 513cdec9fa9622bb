"""Counters on a real server's metrics port: audio and padding by hand, outcomes, streams, instances, reloading."""

import json
import time
import urllib.error
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from serving import Ask, RawClient, Refusal, in_one_batch, metrics_of, quiet_options
from toy import CONTEXT, FRAME, MIN_SAMPLES, SAMPLE_RATE, SHIFT, WINDOW, toy_waveform
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

IDS = count(1)
WORD = toy_waveform("a" * 12 + "bcd")
LAG_S = 0.06  # a model tells its numbers at most every 50 ms
WAIT_S = 30.0
MODELS = {
    "single": ModelOptions(max_batch_size=8, queue_delay_ms=100, max_audio_s=20),
    "twins": ModelOptions(instances=2, queue_delay_ms=0),
    "few": ModelOptions(max_streams=2, queue_delay_ms=0, stream_idle_timeout_s=600),
}


@pytest.fixture(scope="module")
def counted(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("counted") / "repository"
    for name, options in MODELS.items():
        modes = "streaming" if name == "few" else "offline"
        build_repository([toy_bundle], repository, names=[name], modes=modes, options=options)  # type: ignore[arg-type]
    with TritonServer(repository, quiet_options(open="control")) as server:
        await_metrics(server)
        yield server


@pytest.fixture(scope="module")
def client(counted: TritonServer) -> RawClient:
    return RawClient(counted.grpc_address)


def await_metrics(server: TritonServer) -> None:
    """Triton opens this port last, when it has long said that it is ready."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            metrics_of(server, "")
            return
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "the metrics port was never opened"
            time.sleep(LAG_S)


def settled(server: TritonServer, model: str, nudge: Callable[[], object], requests: int) -> dict[str, float]:
    """The counters once `requests` more than those sent by `nudge` are in; `nudge` sends one, which has no audio."""
    deadline = time.monotonic() + WAIT_S
    while True:
        time.sleep(LAG_S)
        nudge()
        requests += 1
        values = metrics_of(server, model)
        if sum(values[each] for each in ("ok", "bad_input", "refused", "failed")) == requests:
            return values
        assert time.monotonic() < deadline, f"{requests} requests were sent, the counters tell of {values}"


def nudge_offline(client: RawClient, model: str) -> Callable[[], object]:
    return lambda: client.ask(Ask(model=model, wav=np.zeros(1, np.float32)))  # too short for the network


def nudge_stream(client: RawClient) -> Callable[[], object]:
    """A stream without audio, which is refused while all slots are taken."""
    return lambda: client.ask(Ask(model="few", stream=next(IDS), start=True, end=True, wav=np.zeros(0, np.float32)))


def test_a_fresh_model_has_all_counters_at_zero_although_it_was_warmed_up(counted: TritonServer) -> None:
    names = {
        *("audio_seconds_total", "padding_seconds_total", "network_calls_total", "network_seconds_total"),
        *("search_seconds_total", "execute_seconds_total", "ok", "bad_input", "refused", "failed"),
    }
    assert metrics_of(counted, "twins") == {**dict.fromkeys(names, 0.0), "model_starts_total": 2}
    few = dict.fromkeys({*names, "open_streams"}, 0.0)
    assert metrics_of(counted, "few") == {**few, "model_starts_total": 1, "stream_slots": 2}


def test_audio_padding_and_outcomes_of_a_batch_are_what_was_sent(counted: TritonServer, client: RawClient) -> None:
    before = settled(counted, "single", nudge_offline(client, "single"), 0)
    nudges = int(before["ok"])
    poisoned = WORD.copy()
    poisoned[5] = np.nan
    shorter = toy_waveform("a" * 12 + "bc")
    asks = [Ask(model="single", wav=wav) for wav in (WORD, shorter, poisoned, shorter)]
    answers = in_one_batch(client, asks, attempts=1)
    assert [isinstance(answer, Refusal) for answer in answers] == [False, False, True, False]
    after = settled(counted, "single", nudge_offline(client, "single"), nudges + len(asks))
    audio = len(WORD) + 2 * len(shorter)
    assert after["bad_input"] == 1
    assert after["refused"] == after["failed"] == 0
    assert after["network_calls_total"] == 1
    assert after["audio_seconds_total"] == pytest.approx(audio / SAMPLE_RATE)
    # All are padded to the longest, and that to a standard length at most 1/64 longer. The bad one is found out when
    # the block is filled, and computed as silence.
    padding = after["padding_seconds_total"] * SAMPLE_RATE
    assert 4 * len(WORD) - audio <= round(padding, 3) <= 4 * len(WORD) * 65 / 64 - audio
    assert len(shorter) + FRAME == len(WORD)
    assert len(WORD) % FRAME == CONTEXT


def test_the_split_of_the_time_adds_up(counted: TritonServer, client: RawClient) -> None:
    values = metrics_of(counted, "single")
    parts = values["network_seconds_total"], values["search_seconds_total"]
    assert min(parts) > 0
    assert sum(parts) < values["execute_seconds_total"] < WAIT_S


def test_instances_of_a_model_count_together(counted: TritonServer, client: RawClient) -> None:
    start = time.monotonic()
    asks = [Ask(model="twins", wav=WORD)] * 40
    assert len(set(client.together(asks))) == 1
    values = settled(counted, "twins", nudge_offline(client, "twins"), len(asks))
    assert values["audio_seconds_total"] == pytest.approx(len(asks) * len(WORD) / SAMPLE_RATE)
    assert 0 < values["execute_seconds_total"] <= 2 * (time.monotonic() - start)


def test_streams_are_counted_open_and_refused_and_their_steps_are_padded(
    counted: TritonServer, client: RawClient
) -> None:
    first, second, third = (next(IDS) for _ in range(3))
    rest = MIN_SAMPLES + 200
    assert client.ask(Ask(model="few", stream=first, start=True, wav=np.zeros(WINDOW, np.float32))) == ""
    assert client.ask(Ask(model="few", stream=second, start=True, wav=np.zeros(10, np.float32))) == ""
    refusal = client.ask(Ask(model="few", stream=third, start=True, wav=np.zeros(10, np.float32)))
    assert isinstance(refusal, Refusal)
    values = settled(counted, "few", nudge_stream(client), 3)
    assert (values["open_streams"], values["ok"]) == (2, 2)
    assert values["refused"] >= 2  # the third and the nudges
    more = np.zeros(rest - (WINDOW - SHIFT), np.float32)
    client.ask(Ask(model="few", stream=first, end=True, wav=more))
    client.ask(Ask(model="few", stream=second, end=True, wav=np.zeros(0, np.float32)))
    values = settled(counted, "few", nudge_stream(client), _total(values) + 2)
    assert values["open_streams"] == 0
    assert values["network_calls_total"] == 2
    assert values["audio_seconds_total"] == pytest.approx((SHIFT + rest) / SAMPLE_RATE)
    assert values["padding_seconds_total"] == pytest.approx((WINDOW - rest) / SAMPLE_RATE)


@pytest.mark.slow
def test_counters_go_on_when_instances_come_and_go(counted: TritonServer, client: RawClient) -> None:
    before = settled(counted, "twins", nudge_offline(client, "twins"), _total(metrics_of(counted, "twins")))
    config = client.grpc.get_model_config("twins", as_json=True)["config"]
    for instances in (3, 1):
        config["instance_group"][0]["count"] = instances
        client.grpc.load_model("twins", config=json.dumps(config))
        assert not isinstance(client.ask(Ask(model="twins", wav=WORD)), Refusal)
    client.grpc.unload_model("twins")
    assert metrics_of(counted, "twins")["audio_seconds_total"] >= before["audio_seconds_total"]
    client.grpc.load_model("twins")
    after = settled(counted, "twins", nudge_offline(client, "twins"), _total(before) + 2)
    assert after["audio_seconds_total"] == pytest.approx(before["audio_seconds_total"] + 2 * len(WORD) / SAMPLE_RATE)


def _total(values: dict[str, float]) -> int:
    return int(sum(values[outcome] for outcome in ("ok", "bad_input", "refused", "failed")))
