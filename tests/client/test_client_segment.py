"""A served segmentation network: clients and the command have the answers of the network here, overlaps included."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import tritone
from serving import quiet_options
from toy_segmentation import FIELD, FRAME, SAMPLE_RATE, write_toy_segmentation
from toy_speaker import toy_voice, write_toy_speaker
from tritone.audio import Waveform
from tritone.cli.main import app
from tritone.client import AsyncClient, Client
from tritone.diarization import Diarizer
from tritone.errors import InputError
from tritone.kinds.segmentation.model import Segmenter
from tritone.repository import build_repository
from tritone.server import TritonServer

ALONE, BOTH = 0.5, 0.95  # levels at which the first speaker talks, and the first two


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of both models, and a recording of three turns with pauses."""
    folder = tmp_path_factory.mktemp("segment")
    write_toy_segmentation(folder / "toy")
    write_toy_speaker(folder / "speaker")
    voices = [toy_voice(shares, 2 * SAMPLE_RATE, seed=seed) for seed, shares in enumerate(([0, 1, 1], [0, 0, 0, 1, 1]))]
    pause = np.zeros(SAMPLE_RATE // 2, np.float32)
    audio = np.concatenate([pause, voices[0], pause, voices[1], pause, voices[0], pause])
    soundfile.write(folder / "call.wav", audio, SAMPLE_RATE, subtype="FLOAT")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[TritonServer]:
    for bundle, name in (("toy", "segmentation"), ("speaker", "voices")):
        build_repository([folder / bundle], folder / "models", names=[name])
    with TritonServer(folder / "models", quiet_options()) as running:
        yield running


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.grpc_address) as client:
        yield client


def window() -> Waveform:
    """A second: nobody, one, two, one."""
    levels = np.repeat([0.0, ALONE, BOTH, ALONE], SAMPLE_RATE // 4)
    return levels.astype(np.float32)


def test_frames_say_who_talks_and_who_talk_at_once(client: Client, folder: Path) -> None:
    here = tritone.load_as(Segmenter, folder / "toy")
    assert {each.name: each.kind for each in client.models()} == {"segmentation": "segmentation", "voices": "embedding"}
    found = client.segment(window())
    counts = found.activity.sum(axis=1)
    centres = (np.arange(len(counts)) * FRAME + FIELD / 2) / SAMPLE_RATE
    inside = np.abs((centres * 4) % 1 - 0.5) < 0.4  # frames that see one level alone
    expected = np.array([0, 1, 2, 1])[(centres * 4).astype(int)]
    np.testing.assert_array_equal(counts[inside], expected[inside])
    pcm = (window()[: SAMPLE_RATE // 2] * 32767).astype(np.int16)
    results = client.segment([window(), np.zeros(SAMPLE_RATE + 1, np.float32), pcm], "segmentation")
    np.testing.assert_array_equal(results[0].activity, here.segment([window()])[0])
    assert isinstance(results[1].error, InputError)
    assert "the limit is 1 s" in str(results[1].error)
    np.testing.assert_array_equal(results[2].activity, here.segment([pcm])[0])
    with pytest.raises(InputError, match="'voices' is not for segmentation but for embeddings"):
        client.segment(window(), "voices")


def test_a_client_in_an_event_loop_has_the_same(server: TritonServer, folder: Path) -> None:
    async def ask() -> np.ndarray:
        async with AsyncClient(f"http://{server.http_address}") as client:
            return await client.segment(window())

    np.testing.assert_array_equal(asyncio.run(ask()), tritone.load_as(Segmenter, folder / "toy").segment([window()])[0])


def test_recordings_are_diarized_with_a_served_network(
    server: TritonServer, client: Client, folder: Path, tmp_path: Path
) -> None:
    here = tritone.load_as(Segmenter, folder / "toy")
    segmenter = client.segmenter()
    sizes = ("window_samples", "frame_samples", "field_samples", "sample_rate")
    assert [getattr(segmenter, size) for size in sizes] == [getattr(here, size) for size in sizes]
    embed = tritone.load(folder / "speaker").embed
    expected = Diarizer(embed, sample_rate=SAMPLE_RATE, segmenter=here).diarize(folder / "call.wav")
    assert Diarizer(embed, sample_rate=SAMPLE_RATE, segmenter=segmenter).diarize(folder / "call.wav") == expected
    command = ["diarize", "call.wav", "--url", server.grpc_address, "--model", "voices", "--segmentation"]
    command[1] = str(folder / "call.wav")
    done = CliRunner().invoke(app, [*command, "segmentation", "--format", "json", "--frames"])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    assert written["turns"] == expected.to_dict()["turns"]
    assert expected.frames is not None
    assert written["frames"] == expected.frames.to_dict()
    talking = written["frames"]["talking"]
    assert list(talking) == [each.label for each in expected.speakers] == ["speaker1", "speaker2"]
    for label, digits in talking.items():
        starts = np.arange(len(digits)) * FRAME / SAMPLE_RATE + FIELD / 2 / SAMPLE_RATE
        turns = [each for each in expected.turns if each.speaker == label]
        inside = [any(turn.start_s <= at < turn.end_s for turn in turns) for at in starts + 1e-6]
        assert digits == "".join("01"[talks] for talks in inside)
    # A bundle of this machine still runs here.
    done = CliRunner().invoke(app, [*command, str(folder / "toy"), "--format", "json"])
    assert json.loads(done.stdout)["turns"] == written["turns"]
    done = CliRunner().invoke(app, [*command, "voices"])
    assert done.exit_code == 1
    assert "is not for segmentation" in done.stderr
    done = CliRunner().invoke(app, [*command, "segmentation", "--frames"])
    assert done.exit_code == 2
