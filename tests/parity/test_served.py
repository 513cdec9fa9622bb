"""Golden cases through a real Triton: what upstream's network says of its features is what the server answers."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.conftest import golden_folders
from parity.front_end import as_samples
from parity.golden_cases import Case, find_cases, rows
from serving import Ask, RawClient, quiet_options
from tritone.bundle.bundle import Bundle
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

pytestmark = pytest.mark.slow  # exports of all cases
Exported = Callable[[Case], Path]


def model_name(case: Case, mode: str) -> str:
    return case.name.replace("/", ".") + f".{mode}"


@pytest.fixture(scope="module")
def raw(
    exported: Exported, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RawClient]:
    """One server with the models of all cases."""
    repository = tmp_path_factory.mktemp("served") / "repository"
    options = ModelOptions(queue_delay_ms=20, threads=1)
    for mode, kind in (("offline", "wenet"), ("streaming", "wenet_streaming")):
        for case in find_cases(golden_folders(request.config), kind):
            name = model_name(case, mode)
            build_repository([exported(case)], repository, names=[name], modes=mode, options=options)  # type: ignore[arg-type]
    with TritonServer(repository, quiet_options()) as running:
        yield RawClient(running.grpc_address)


def expected_texts(case: Case, exported: Exported, prefix: str) -> list[str]:
    vocabulary = Bundle.open(exported(case)).vocabulary
    return [vocabulary.text(row) for row in rows(case.expected[f"{prefix}_tokens"], case.expected[f"{prefix}_lens"])]


def test_offline_requests_give_upstreams_greedy_text(wenet_case: Case, exported: Exported, raw: RawClient) -> None:
    asks = [Ask(model=model_name(wenet_case, "offline"), wav=samples) for samples in as_samples(wenet_case)]
    assert raw.together(asks) == expected_texts(wenet_case, exported, "single_greedy")


def test_a_batch_padded_by_the_client_gives_the_same(wenet_case: Case, exported: Exported, raw: RawClient) -> None:
    feats, lengths = wenet_case.inputs["feats"], wenet_case.inputs["feats_lengths"]
    ask = Ask(
        model=model_name(wenet_case, "offline"),
        wav=feats.reshape(len(feats), -1),
        lens=[int(n) * feats.shape[2] for n in lengths],
    )
    assert raw.ask(ask) == expected_texts(wenet_case, exported, "single_greedy")


def test_details_place_tokens_on_frames(wenet_case: Case, raw: RawClient) -> None:
    samples = as_samples(wenet_case)[0]
    ask = Ask(model=model_name(wenet_case, "offline"), wav=samples, outputs=("TRANSCRIPTS", "DETAILS"))
    text, details = raw.ask(ask)
    found: dict[str, Any] = json.loads(details)
    assert found["text"] == text
    assert len(found["tokens"]) == wenet_case.expected["single_greedy_lens"][0]
    starts = [token["start_s"] for token in found["tokens"]]
    assert starts == sorted(starts)


@pytest.mark.parametrize("piece", [80 * 16, 80 * 50])
def test_streams_side_by_side_give_upstreams_chunked_greedy_text(
    streaming_case: Case, exported: Exported, raw: RawClient, piece: int
) -> None:
    waveforms, texts = as_samples(streaming_case), {}
    first = zlib.crc32(f"{streaming_case.name} {piece}".encode()) * 1000 + 1
    for start in range(0, max(map(len, waveforms)), piece):
        asks = {
            index: Ask(
                model=model_name(streaming_case, "streaming"),
                wav=np.ascontiguousarray(waveform[start : start + piece]),
                stream=first + index,
                start=start == 0,
                end=start + piece >= len(waveform),
            )
            for index, waveform in enumerate(waveforms)
            if start < len(waveform)
        }
        texts |= dict(zip(asks, raw.together(list(asks.values())), strict=True))
    assert [texts[index] for index in sorted(texts)] == expected_texts(streaming_case, exported, "chunk_greedy")
