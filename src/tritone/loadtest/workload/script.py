"""Recordings cut into the chunks of streams, as requests.

    waveforms, chunk length  ->  Script  ->  Body of every chunk, and when it has been spoken

Many streams share the chunks of a recording, so a chunk is encoded once and only the stream's id is added to it.
"""

from collections.abc import Sequence

import numpy as np

from tritone.loadtest.senders.wire import Body, Place, Target, Waveform, encode

ROOM_BYTES = 256 << 20


class Script:
    """Recordings cut into chunks, as requests; what was encoded is kept while there is room.

    Args:
        target: the streaming model.
        recordings: waveforms at its rate, none of them empty.
        chunk_s: of every chunk but a recording's last, which carries the rest and END, as our client's does.
        order: indices of recordings, in which streams take them; it starts again at its end.
        room_bytes: of encoded requests to keep; beyond it a chunk is encoded shortly before it is due.
        place: as of `encode`, for the chunks that are kept.
    """

    def __init__(
        self,
        target: Target,
        recordings: Sequence[Waveform],
        *,
        chunk_s: float,
        order: Sequence[int],
        room_bytes: int = ROOM_BYTES,
        place: Place | None = None,
    ) -> None:
        if empty := [index for index, recording in enumerate(recordings) if not len(recording)]:
            raise ValueError(f"recording {empty[0]} has no samples; nothing of it can be due")
        self._target = target
        self._recordings = recordings
        self._samples = round(chunk_s * target.sample_rate)
        if self._samples < 1:
            raise ValueError(f"a chunk must hold at least one sample of {target.sample_rate} Hz, got {chunk_s} s")
        self._order = order
        self._next = 0
        self._bodies: dict[tuple[int, int], Body] = {}
        self._room = room_bytes
        self._place = place

    def take(self) -> int:
        """The recording of the next stream."""
        recording = self._order[self._next % len(self._order)]
        self._next += 1
        return recording

    def count(self, recording: int) -> int:
        """How many chunks a recording has."""
        return -(-len(self._recordings[recording]) // self._samples)

    def spoken_s(self, recording: int, chunk: int) -> float:
        """When the last sample of a chunk is spoken, in seconds from the recording's start."""
        return min((chunk + 1) * self._samples, len(self._recordings[recording])) / self._target.sample_rate

    def body(self, recording: int, chunk: int) -> Body:
        """A chunk as a request that belongs to no stream yet."""
        body = self._bodies.get((recording, chunk))
        if body is None:
            start = chunk * self._samples
            waveform = self._recordings[recording][start : start + self._samples]
            size = len(waveform) * self._target.bytes_per_sample
            is_kept = size <= self._room
            body = encode(self._target, [waveform], place=self._place if is_kept else None)
            if is_kept:
                self._room -= max(size, body.num_bytes)
                self._bodies[recording, chunk] = body
        return body

    def goodbye(self) -> Body:
        """A request without audio, to end a stream with."""
        return encode(self._target, [np.zeros(0, dtype=np.float32)])

    def warm(self, streams: int) -> None:
        """Encode what the first streams need, as far as there is room."""
        for recording in list(dict.fromkeys(self._order))[:streams]:
            for chunk in range(self.count(recording)):
                if self.body(recording, chunk) and (recording, chunk) not in self._bodies:
                    return
