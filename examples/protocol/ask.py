"""Asks a gateway that speaks Lines: python ask.py recording.wav [localhost:9000] [model]

The recording, 16-bit at 16 kHz, is sent live, and then as a whole.
"""

import sys
import urllib.request
import wave
from pathlib import Path

from websockets.sync.client import connect

CHUNK_BYTES = 3200  # 0.1 s

path = Path(sys.argv[1])
address = sys.argv[2] if len(sys.argv) > 2 else "localhost:9000"
model = f"?model={sys.argv[3]}" if len(sys.argv) > 3 else ""

with wave.open(str(path)) as recording:
    samples = recording.readframes(recording.getnframes())
with connect(f"ws://{address}/lines/live{model}") as socket:
    for start in range(0, len(samples), CHUNK_BYTES):
        socket.send(samples[start : start + CHUNK_BYTES])
    socket.send("end")
    for line in socket:
        print(f"live:  {line}")

with urllib.request.urlopen(f"http://{address}/lines{model}", path.read_bytes()) as answer:
    for line in answer.read().decode().splitlines():
        print(f"whole: {line}")
