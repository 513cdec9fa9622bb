"""sherpa-onnx's protocol for whole recordings: what clients of its offline WebSocket server send to ws://HOST:6006.

    rate and number of bytes (int32 each), float32 samples, in messages of any size  ...  "Done"
        ->  {"text": "one two", "tokens": [...], "timestamps": [...], ...} for each recording

Source: k2-fsa/sherpa-onnx, sherpa-onnx/csrc/offline-websocket-server-impl.cc and
python-api-examples/offline-websocket-client-*.py.
"""

import struct
from collections.abc import Mapping
from typing import Any

from tritone.audio import wav
from tritone.audio.files import check_sample_rate
from tritone.errors import InputError
from tritone.gateway.ask import Ask
from tritone.gateway.conversation import SocketConversation
from tritone.gateway.protocols.sherpa_onnx.online import END, complaint
from tritone.gateway.refusal import GatewayRefusal
from tritone.transcript import Transcript

HEADER = struct.Struct("<ii")  # rate in Hz, number of bytes
SAMPLE = 4  # bytes
MAX_RECORDING_S = 300.0  # as that server has it, for a recording is held in memory


class OfflineConversation(SocketConversation):
    """One conversation, in which recordings come one after the other."""

    protocol, path = "sherpa-onnx-offline", "/sherpa-onnx-offline"
    complaint = staticmethod(complaint)

    async def begin(self) -> None:
        self._received = bytearray()

    async def take_audio(self, data: bytes) -> None:
        self._received += data
        rate, size = _header(self._received)
        if len(self._received) < HEADER.size + size:
            return
        if len(self._received) > HEADER.size + size:
            had = len(self._received) - HEADER.size
            raise InputError(f"the recording has {had:,} bytes, its header says {size:,}")
        samples = memoryview(self._received)[HEADER.size :]
        wave = wav.wav_file(samples, tag=wav.FLOAT, width=SAMPLE, sample_rate=rate)
        self._received = bytearray()
        await self.socket.send(_result(await self.speech.transcribe(wave, await self.ask(), self.caller)))

    async def ask(self) -> Ask:
        return Ask(model=self.socket.query.get("model", ""))

    async def command(self, text: str) -> None:
        if text != END:
            raise InputError(f"expected a recording or {END!r}, got {text[:80]!r}")
        self.is_over = True


routes = OfflineConversation.routes


def _header(received: bytearray) -> tuple[int, int]:
    """Rate in Hz and number of bytes of the recording; `InputError` if no recording can have them."""
    if len(received) < HEADER.size:
        raise InputError(f"a recording begins with {HEADER.size} bytes, its rate and its size; got {len(received)}")
    rate, size = HEADER.unpack_from(received)
    try:
        check_sample_rate(rate)
    except (ValueError, InputError) as error:
        raise InputError(f"the header of the recording: {error}") from error
    if size < 0 or size % SAMPLE:
        raise InputError(f"the header of the recording: {size} bytes are no whole number of float32 samples")
    if size > MAX_RECORDING_S * rate * SAMPLE:
        found_s = size / SAMPLE / rate
        raise GatewayRefusal(
            413, f"the recording is {found_s:.1f} s long, the limit here is {MAX_RECORDING_S:g} s; cut it, or stream it"
        )
    return rate, size


def _result(transcript: Transcript) -> Mapping[str, Any]:
    return {
        "lang": transcript.language,
        "emotion": "",
        "event": "",
        "text": transcript.text,
        "timestamps": [round(each.start_s, 2) for each in transcript.tokens],
        "durations": [round(each.end_s - each.start_s, 2) for each in transcript.tokens],
        "tokens": [each.text for each in transcript.tokens],
        "ys_log_probs": [],
        "words": [],
    }
