"""G.711 against libsndfile, for every code that there is."""

from io import BytesIO

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from tritone.audio.g711 import decode_alaw, decode_mulaw

CODES = bytes(range(256))


def by_libsndfile(subtype: str) -> npt.NDArray[np.int16]:
    samples, _ = soundfile.read(
        BytesIO(CODES), dtype="int16", samplerate=8000, channels=1, format="RAW", subtype=subtype
    )
    found: npt.NDArray[np.int16] = samples
    return found


@pytest.mark.parametrize(("decode", "subtype"), [(decode_mulaw, "ULAW"), (decode_alaw, "ALAW")])
def test_every_code_has_the_value_that_libsndfile_reads(decode: object, subtype: str) -> None:
    decoded = decode(CODES)  # type: ignore[operator]
    assert decoded.dtype == np.int16
    np.testing.assert_array_equal(decoded, by_libsndfile(subtype))
    assert decode(b"").size == 0  # type: ignore[operator]
