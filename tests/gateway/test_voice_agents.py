"""examples/voice-agents: Pipecat and LiveKit Agents, as they come from their packages, hear turns through the gateway.

They bring many packages of their own. Where these are in another environment, VOICE_AGENTS_PYTHON names its Python.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile

from toy import CONTEXT, FRAME, SAMPLE_RATE, toy_waveform
from tritone.gateway.server import GatewayServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "voice-agents"
PYTHON = os.environ.get("VOICE_AGENTS_PYTHON", "")
NEEDED = {"pipecat": ("pipecat", "loguru", "deepgram"), "livekit": ("livekit.agents", "livekit.plugins.deepgram")}
STARTS, ENDS, TEXT = "turn starts", "turn ends", "text: one neo"
MARKED = "text: One neo."  # both frameworks ask Deepgram for marks
TIMEOUT_S = 120

pytestmark = pytest.mark.slow


def is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that is not there either
        return False


@pytest.mark.parametrize(
    ("framework", "service", "lines"),
    [
        ("pipecat", "flux", [STARTS, "turn may be ending: one", "turn goes on", TEXT, ENDS]),
        ("pipecat", "deepgram", [MARKED]),
        ("pipecat", "openai", [STARTS, ENDS, TEXT]),
        ("livekit", "flux", [STARTS, "turn may be ending: one", TEXT, ENDS]),
        ("livekit", "deepgram", [STARTS, MARKED, ENDS]),
        ("livekit", "openai", [STARTS, ENDS, TEXT]),
    ],
)
def test_a_framework_hears_one_turn(
    turning: GatewayServer, tmp_path: Path, framework: str, service: str, lines: list[str]
) -> None:
    if not PYTHON and not all(map(is_here, NEEDED[framework])):
        pytest.skip(f"needs the packages of examples/voice-agents for {framework}, here or in VOICE_AGENTS_PYTHON")
    quiet = [np.zeros(count * FRAME, np.float32) for count in (5, 13)]
    one, neo = (toy_waveform(text, 3)[:-CONTEXT] for text in ("one", "neo"))
    soundfile.write(tmp_path / "speech.wav", np.concatenate((quiet[0], one, quiet[1], neo)), SAMPLE_RATE, "PCM_16")
    program = [PYTHON or sys.executable, EXAMPLE / f"with_{framework}.py", service, tmp_path / "speech.wav"]
    ended = subprocess.run(
        [*program, "--gateway", f"127.0.0.1:{turning.port}", "--model", "live"],
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.stdout.splitlines() == lines, ended.stderr[-2000:]
