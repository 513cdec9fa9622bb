"""The audio of a worker's requests in shared memory, where it lies as long as the worker sends them.

open_shared_audio(target, bytes)  ->  SharedAudio.place(block)  ->  the place that its requests name
"""

from contextlib import suppress
from typing import Any

import numpy.typing as npt

from tritone.client.regions import Room, open_region
from tritone.client.shared_memory import GOODBYE_S, LEAST_BYTES, register
from tritone.client.transport import Placement, connect
from tritone.errors import OperatorError, TritoneError
from tritone.loadtest.senders.wire import Target

SPARE = 256  # bytes that a place may take beyond its block


class SharedAudio:
    """A region that the server of a target knows; close it.

    Args:
        target: whose `shared_memory` says which kind.
        size: bytes of all blocks.
        blocks: how many they are.

    Raises: as `register`, and `OperatorError` if this machine has no such memory.
    """

    def __init__(self, target: Target, size: int, blocks: int) -> None:
        assert target.shared_memory is not None
        size += blocks * SPARE
        self._transport = connect(target.endpoint)
        self._region = open_region(target.shared_memory, size)
        self._room = Room(size)
        try:
            register(self._transport, self._region, target.endpoint)
        except BaseException:
            self.close()
            raise

    def place(self, block: npt.NDArray[Any]) -> Placement | None:
        """Copy a block there. None: it is too small to be worth it, or there is no room.

        Raises:
            OperatorError: the machine has no memory left for it.
        """
        if block.nbytes < LEAST_BYTES or (offset := self._room.take(block.nbytes)) is None:
            return None
        try:
            self._region.write(offset, block)
        except OSError as error:
            raise OperatorError(
                f"no shared memory for the {self._region.size >> 20} MB of audio that a process of the generator sends "
                f"({error.strerror}). Make /dev/shm larger (docker run --shm-size), or send less or shorter audio."
            ) from error
        return Placement(self._region.name, offset, block.nbytes)

    def close(self) -> None:
        """Have the server forget it, and free it."""
        with suppress(TritoneError):
            self._transport.unregister(self._region.name, self._region.memory, GOODBYE_S)
        self._transport.close()
        self._region.close()


def open_shared_audio(target: Target, size: int, blocks: int) -> SharedAudio | None:
    """The region for blocks of `size` bytes together; None where audio travels in messages."""
    return SharedAudio(target, size, blocks) if target.shared_memory is not None else None
