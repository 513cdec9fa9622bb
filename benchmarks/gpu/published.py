"""What others print: of one T4 the source documents, WeNet's runtime and Jasper on TensorRT Inference Server; of newer
GPUs Parakeet and Nemotron, each figure with its source.

sherpa's document names such a table of a transducer of 80 M parameters, in float32 at 5, 8 and 10 s, and left it empty.
"""

from typing import Any

Row = dict[str, Any]

# model of ours with the published size, seconds, requests in flight, utterances a second, p50, p95 and p99 in ms
_WENET = (
    ("wenet-256", 5, 50, 204, 245.0, 284.8, 295.8),
    ("wenet-256", 5, 100, 225, 452.6, 506.4, 533.3),
    ("wenet-256", 5, 150, 228, 657.5, 747.5, 794.3),
    ("wenet-256", 5, 200, 228, 875.7, 975.7, 1020.6),
    ("wenet-256", 10, 10, 88, 116.2, 136.9, 149.2),
    ("wenet-256", 10, 50, 108, 476.7, 532.7, 562.1),
    ("wenet-256", 10, 100, 110, 921.4, 1030.0, 1067.6),
    ("wenet-512", 5, 50, 110, 464.2, 518.0, 547.0),
    ("wenet-512", 5, 100, 112, 891.2, 1011.1, 1093.2),
    ("wenet-512", 10, 5, 50, 100.4, 122.1, 132.1),
    ("wenet-512", 10, 10, 50, 201.6, 252.0, 286.1),
    ("wenet-512", 10, 50, 52, 986.5, 1051.3, 1101.0),
)
# search, streams, mean, p95 and p99 in ms, answers a second; the past is five chunks
_STREAMS = (
    ("prefix-beam", 50, 78, 110, 134, 644),
    ("prefix-beam", 100, 124, 155, 192, 805),
    ("rescoring", 50, 99, 136, 164, 504),
    ("rescoring", 100, 172, 227, 272, 585),
)
# seconds, utterances in a request, utterances a second and ms of a request by TensorRT, PyTorch and ONNX, in fp16
_JASPER = (
    (2.0, 1, (46.67, 40.67, 41.0), (24.74, 27.8, 26.7)),
    (2.0, 2, (90.67, 74.67, 58.0), (23.75, 29.76, 38.54)),
    (2.0, 4, (168.0, 128.0, 112.0), (25.28, 34.09, 39.67)),
    (2.0, 8, (248.0, 213.33, 194.67), (36.18, 41.18, 45.84)),
    (7.0, 1, (44.33, 31.67, 37.0), (25.86, 34.82, 29.41)),
    (7.0, 2, (74.67, 56.67, 49.33), (29.83, 38.04, 43.37)),
    (7.0, 4, (100.0, 62.67, 50.67), (41.91, 66.69, 79.38)),
    (7.0, 8, (106.67, 80.0, 53.33), (80.72, 106.86, 151.61)),
    (16.7, 1, (31.0, 20.0, 25.33), (34.89, 52.83, 43.1)),
    (16.7, 2, (42.0, 29.33, 19.33), (51.91, 73.52, 105.58)),
    (16.7, 4, (46.67, 29.33, 22.67), (95.42, 145.17, 187.49)),
    (16.7, 8, (50.67, 37.33, 21.33), (167.67, 229.67, 413.74)),
)

WENET: list[Row] = [
    {"of": of, "audio": f"{seconds}", "load": load, "utterances_s": rate, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
    for of, seconds, load, rate, p50, p95, p99 in _WENET
]
STREAMS: list[Row] = [
    {"search": search, "load": streams, "mean_ms": mean, "p95_ms": p95, "p99_ms": p99, "answers_s": rate}
    for search, streams, mean, p95, p99, rate in _STREAMS
]
JASPER: list[Row] = [
    {
        "audio": f"{seconds:g}",
        "utterances": rows,
        **{f"{name}_s": rate for name, rate in zip(("tensorrt", "torchscript", "onnxruntime"), rates, strict=True)},
        **{f"{name}_ms": wait for name, wait in zip(("tensorrt", "torchscript", "onnxruntime"), waits, strict=True)},
    }
    for seconds, rows, rates, waits in _JASPER
]

RUNTIMES = {"tensorrt": "TensorRT", "torchscript": "TorchScript", "onnxruntime": "ONNX Runtime"}  # of NVIDIA's document

CARD = "https://huggingface.co/nvidia/parakeet-tdt-0.6b-v2"
FAST = "the description of its package"
LEADERBOARD = "seven English sets of the Open ASR Leaderboard"
# what, system, GPU ("" where the source names none), conditions, seconds of audio a second, source
_PARAKEET = (
    ("0.6B TDT v2", "NeMo", "", "Open ASR Leaderboard, batches of 128; card of 2025-04-15", 3386.0, CARD),
    ("0.6B TDT v3", "fast-gpu-asr 0.2", "A100", f"{LEADERBOARD}, fp16, beam 6, batches of 256", 6482.0, FAST),
    ("0.6B TDT v3", "fast-gpu-asr 0.2", "H200", f"{LEADERBOARD}, fp16, beam 6, batches of 256", 12352.7, FAST),
    ("0.6B TDT v3", "fast-gpu-asr 0.2", "B300", f"{LEADERBOARD}, fp16, beam 6, batches of 256", 19398.7, FAST),
    ("0.6B TDT v3", "fast-gpu-asr 0.2", "H200", f"{LEADERBOARD}, fp16, beam 6, one by one", 593.6, FAST),
)
REPORTED = "https://nicnonac.com/resources/nemotron-asr-nvidia-streaming-speech"
# what, system, GPU, milliseconds of a chunk, streams at once, source
_NEMOTRON = (
    ("Nemotron 3.5 ASR 0.6B, cache-aware", "NVIDIA, as reported by others", "H100", 80, 240, REPORTED),
    ("Nemotron 3.5 ASR 0.6B, cache-aware", "NVIDIA, as reported by others", "H100", 1120, 2400, REPORTED),
    ("Parakeet RNNT 1.1B, buffered", "NVIDIA, as reported by others", "H100", 80, 14, REPORTED),
    ("Parakeet RNNT 1.1B, buffered", "NVIDIA, as reported by others", "H100", 1120, 400, REPORTED),
)
PARAKEET: list[Row] = [
    dict(zip(("what", "system", "gpu", "conditions", "rtfx", "source"), row, strict=True)) for row in _PARAKEET
]
NEMOTRON: list[Row] = [
    dict(zip(("what", "system", "gpu", "chunk_ms", "streams", "source"), row, strict=True)) for row in _NEMOTRON
]
