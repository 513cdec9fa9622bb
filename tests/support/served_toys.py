"""One real server for the tests of several rooms: toys with small limits, and some with more than greedy search."""

import os
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving import RawClient, Serve, kill_tree, quiet_options
from toy import write_toy_bundle
from toy_speaker import write_toy_speaker
from toy_transducer import write_toy_transducer
from tritone.repository import EnsembleOptions, ModelOptions, build_repository
from tritone.server import TritonServer

# name of the bundle's models -> what is built, how it is served. The queue delay lets requests that are sent at once
# share a batch; a batch that is full does not wait.
MODELS = {
    "toy": ("offline", ModelOptions(max_batch_size=8, queue_delay_ms=50, max_audio_s=20)),
    "narrow": ("offline", ModelOptions(max_batch_size=8, queue_delay_ms=500, queue_limit=2)),
    "toy-chunks": (
        "streaming",
        ModelOptions(max_batch_size=4, queue_delay_ms=50, max_audio_s=20, max_streams=4, stream_idle_timeout_s=600),
    ),
    "brief": ("streaming", ModelOptions(queue_delay_ms=0, max_streams=2, stream_idle_timeout_s=0.3)),
    "pair": ("streaming", ModelOptions(queue_delay_ms=0, instances=2, max_streams=4, stream_idle_timeout_s=600)),
}
# Of the bundle with a decoder. The first two have the names that clients of WeNet's runtime expect; their weight of CTC
# leaves texts as they were heard, for the toy decoder has tastes of its own.
DECODING = {
    "attention_rescoring": (
        "offline",
        ModelOptions(search="rescoring", ctc_weight=50, queue_delay_ms=50, max_batch_size=8),
    ),
    "streaming_wenet": (
        "streaming",
        ModelOptions(search="rescoring", ctc_weight=50, queue_delay_ms=20, max_streams=4, stream_idle_timeout_s=600),
    ),
    "segments": (
        "streaming",
        ModelOptions(
            search="prefix-beam",
            queue_delay_ms=0,
            max_streams=2,
            stream_idle_timeout_s=600,
            endpoint_silence_after_speech_s=0.4,
        ),
    ),
}
# Of a transducer. The first has the name that sherpa's clients expect; a streaming model there is called the same.
TRANSDUCING = {
    "transducer": ("offline", ModelOptions(max_batch_size=16, queue_delay_ms=50, max_audio_s=60)),
    "transducer-live": (
        "streaming",
        ModelOptions(queue_delay_ms=20, max_batch_size=4, max_streams=4, stream_idle_timeout_s=600),
    ),
    "transducer-brief": (
        "streaming",
        ModelOptions(
            search="fast-beam",
            max_states=16,
            queue_delay_ms=0,
            max_streams=2,
            stream_idle_timeout_s=0.3,
            endpoint_silence_after_speech_s=0.16,
        ),
    ),
}
# Of a speaker model, which has the name that clients of WeSpeaker expect.
SPEAKING = ModelOptions(max_batch_size=8, queue_delay_ms=50, max_audio_s=20)
# Every letter and digit is as likely, but for a "c".
LETTERS = string.ascii_lowercase + string.digits
LM = "\n".join(
    [
        "\\data\\",
        f"ngram 1={len(LETTERS) + 3}",
        "",
        "\\1-grams:",
        *(f"{-0.1 if letter == 'c' else -5}\t{letter}" for letter in [*LETTERS, "<unk>", "<s>", "</s>"]),
        "",
        "\\end\\",
        "",
    ]
)


@pytest.fixture(scope="session")
def decoding_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy bundle with an attention decoder."""
    return write_toy_bundle(tmp_path_factory.mktemp("bundles") / "decoding", decoder=True)


@pytest.fixture(scope="session")
def transducer_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_transducer(tmp_path_factory.mktemp("bundles") / "transducer")


@pytest.fixture(scope="session")
def speaker_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy speaker model with graphs for stages."""
    return write_toy_speaker(tmp_path_factory.mktemp("bundles") / "speaker", stages=True)


@pytest.fixture(scope="session")
def server(
    toy_bundle: Path,
    decoding_bundle: Path,
    transducer_bundle: Path,
    speaker_bundle: Path,
    searches_compiled: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    for bundle, models in ((toy_bundle, MODELS), (decoding_bundle, DECODING), (transducer_bundle, TRANSDUCING)):
        for name, (mode, options) in models.items():
            build_repository([bundle], repository, names=[name], modes=mode, options=options)  # type: ignore[arg-type]
    build_repository([speaker_bundle], repository, options=replace(SPEAKING, window_s=0.5))
    build_repository([speaker_bundle], repository, names=["speaker-staged"], options=SPEAKING, layout=EnsembleOptions())
    files = tmp_path_factory.mktemp("files")
    (files / "letters.arpa").write_text(LM, encoding="utf-8")
    (files / "names.txt").write_text("d 20\n", encoding="utf-8")
    helped = ModelOptions(
        search="prefix-beam",
        beam=40,  # all tokens: the toy model holds all but one for equally unlikely
        lm=str(files / "letters.arpa"),
        lm_unit="token",
        lm_weight=1,
        word_bonus=7,
        hotwords=str(files / "names.txt"),
    )
    build_repository([toy_bundle], repository, names=["helped"], modes="offline", options=helped)
    shutil.rmtree(files)  # the repository has its own
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="session")
def raw(server: TritonServer) -> RawClient:
    return RawClient(server.grpc_address)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start `tritone serve`; what is still running at the end of the test is killed with everything below it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "serve", *map(str, arguments)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, encoding="utf-8", env=os.environ | {"PYTHONUNBUFFERED": "1"}, **pipes))
        return started[-1]

    yield start
    for process in started:
        kill_tree(process)
