"""Recordings in the containers of phones, browsers and cameras, whole and in the ways in which they cannot be read."""

import io
from typing import Any

import av
import numpy as np
import numpy.typing as npt

ENCRYPTED = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "76" * 16, "encryption_kid": "a7" * 16}


def contained(
    samples: npt.NDArray[np.float32], rate: int, container: str, codec: str, *, options: dict[str, str] | None = None
) -> bytes:
    """Samples in a file; those of `alac`, `flac` and `pcm_s16le` are read again as they are, to 16 bits."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options or {}) as out:
        stream: Any = out.add_stream(codec, rate=rate, layout="mono")
        whole = np.round(samples * 32767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(whole, format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(stream.format, "mono", rate, frame_size=stream.frame_size or 1024)
        for each in [*resampler.resample(frame), *resampler.resample(None), None]:
            out.mux(list(stream.encode(each)))
    return file.getvalue()


def silent_film() -> bytes:
    """A video without an audio track."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream: Any = out.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def unreadable(samples: npt.NDArray[np.float32], rate: int) -> dict[str, tuple[bytes, bool, str]]:
    """Files that cannot be read, by what they are: their bytes, whether their format is at fault, and what is said."""
    m4a, webm = contained(samples, rate, "ipod", "aac"), contained(samples, rate, "webm", "libopus")
    return {
        "a text": (b"hello, I am a text\n" * 100, True, "is not audio that can be read"),
        "zeros": (bytes(5000), True, "is not audio that can be read"),
        "a film without sound": (silent_film(), True, "has no audio: it holds video"),
        "a codec of others": (webm.replace(b"A_OPUS", b"A_XPUS"), True, "has audio of a codec that libav does not"),
        "bought music": (contained(samples, rate, "mp4", "aac", options=ENCRYPTED), True, "is encrypted"),
        "an m4a that was cut off": (m4a[: len(m4a) // 2], False, "is cut off"),
        "a webm that was cut off": (webm[: len(webm) // 2], False, "is cut off"),
    }
