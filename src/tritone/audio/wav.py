"""Samples that came without a header, as a file that says what they are.

bytes of samples  ->  bytes of a WAV file
"""

import struct

PCM, FLOAT, ALAW, MULAW = 1, 3, 6, 7
"""Format tags of RIFF/WAVE."""


def wav_file(samples: bytes | memoryview, *, tag: int, width: int, sample_rate: int, channels: int = 1) -> bytes:
    """Put a header before samples.

    Args:
        samples: little-endian, those of several channels interleaved.
        tag: the type of a sample, such as `FLOAT`.
        width: of a sample, in bytes.
        sample_rate: in Hz.
    """
    frame = width * channels
    about = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, channels, sample_rate, sample_rate * frame, frame, 8 * width)
    head = struct.pack("<4sI4s", b"RIFF", 4 + len(about) + 8 + len(samples), b"WAVE")
    return b"".join((head, about, struct.pack("<4sI", b"data", len(samples)), samples))
