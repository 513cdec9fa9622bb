"""G.711, the telephone's 8-bit audio: bytes of mu-law or A-law  ->  (samples,) int16, one sample a byte.

Source: ITU-T G.711; the 13 and 14 bit values are scaled to 16 bits as libsndfile scales them.
"""

import numpy as np
import numpy.typing as npt

SAMPLE_RATE = 8000  # Hz, of every G.711 stream


def decode_mulaw(data: bytes) -> npt.NDArray[np.int16]:
    """Decode mu-law, the form of North America and Japan: (samples,) int16."""
    return _MULAW[np.frombuffer(data, np.uint8)]


def decode_alaw(data: bytes) -> npt.NDArray[np.int16]:
    """Decode A-law, the form of the rest of the world: (samples,) int16."""
    return _ALAW[np.frombuffer(data, np.uint8)]


def _mulaw_value(code: int) -> int:
    code = ~code & 0xFF  # all bits are sent inverted
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code & 0x70) >> 4)) - 0x84
    return -magnitude if code & 0x80 else magnitude


def _alaw_value(code: int) -> int:
    code ^= 0x55  # every second bit is sent inverted
    exponent, magnitude = (code & 0x70) >> 4, ((code & 0x0F) << 4) + 8
    if exponent:
        magnitude = (magnitude + 0x100) << (exponent - 1)
    return magnitude if code & 0x80 else -magnitude


_MULAW = np.array([_mulaw_value(code) for code in range(256)], np.int16)
_ALAW = np.array([_alaw_value(code) for code in range(256)], np.int16)
