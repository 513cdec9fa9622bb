"""Audio that comes through a pipe, which cannot seek.

WAV of plain samples is decoded as it comes. All else is kept in a temporary file first, because its decoders seek.
"""

import tempfile
from collections.abc import Callable, Generator
from typing import BinaryIO

from tritone.audio import plain
from tritone.audio.block import Block, Wanted
from tritone.errors import AudioError
from tritone.paths import explained

MAX_KEPT = 8 << 30  # bytes of a temporary file

Decoder = Callable[[BinaryIO, Wanted], Generator[Block, None, None]]


def decoded(file: BinaryIO, wanted: Wanted, seeking: Decoder) -> Generator[Block, None, None]:
    """The blocks of audio in a pipe; errors as of `files._decoded`, which is `seeking`.

    A length that no header states is found by reading: `AudioTooLongError` comes once so much was read.
    """
    name, tape = wanted.name, plain.Tape(file)
    head = tape.read(12)
    if not head:
        raise AudioError(f"{name} is empty (0 bytes)")
    seen = bytearray(head)
    if plain.is_wav(head):
        found = plain.header(tape, seen, name)
        if found is not None:
            yield from plain.decoded(tape, wanted, *found, None)
            while plain.follows(tape):
                found = plain.header(tape, bytearray(tape.read(12)), name)
                if found is None:
                    raise AudioError(f"{name} goes on as WAV of another kind; save the audio to a file first")
                yield from plain.decoded(tape, wanted, *found, None)
            return
    with tempfile.TemporaryFile(prefix="tritone-audio-") as kept:
        try:
            kept.write(seen)
            while block := tape.read(1 << 20):
                if kept.tell() + len(block) > MAX_KEPT:
                    raise AudioError(
                        f"{name}: more than {MAX_KEPT >> 30} GiB came through the pipe, and only WAV of plain samples "
                        "is read as it comes. Save the audio to a file, or convert it to WAV on its way."
                    )
                kept.write(block)
            kept.seek(0)
        except OSError as error:
            raise explained(error, f"cannot keep the audio of {name} in {tempfile.gettempdir()}") from error
        yield from seeking(kept, wanted)
