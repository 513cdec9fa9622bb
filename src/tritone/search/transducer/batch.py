"""Beam searches of a transducer that advance together: in each frame one call of the joiner for all of them.

encoder_out (batch, frames, dim), one search for each row  ->  the searches, so many frames further
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.beam.beam import Beam
from tritone.search.transducer.memory import Memory, StatefulPredictor
from tritone.search.transducer.network import Contexts, Network, StatefulNetwork, Vectors, as_answers
from tritone.search.transducer.predictor import PredictorCache, common_cache

if TYPE_CHECKING:
    from tritone.search.compiled import addresses
    from tritone.search.scoring.scorer import Scorer
    from tritone.search.transducer import rows
    from tritone.search.transducer.modified_beam import ModifiedBeam
else:
    addresses, rows = later("addresses"), later("rows")


class TransducerBeam(Beam):
    """A beam search of a transducer.

    Any cutting of the frames into calls of `advance_beams`, and any neighbours there, give the same hypotheses.
    """

    cache: PredictorCache | StatefulPredictor
    kernel: Any  # module with the compiled functions `ask(rows, frame)` and `step(rows, frame, logits)`
    max_rows: int  # the most rows of the joiner in one frame
    spare_frames: ClassVar[int]  # that there is room for at least, after room was made

    @abstractmethod
    def _frames_of_room(self) -> int:
        """For how many frames there is room."""

    def ready(self, count: int) -> int:
        """Decide if it is time to, make room if there is little, and return how many of `count` frames can follow."""
        self._decide_if_due()
        if self._frames_of_room() < min(count, self.spare_frames // 2):
            self._make_room()
        return self._until_decision(min(count, self._frames_of_room()))


def check_scorer(scorer: "Scorer | None", network: Network | StatefulNetwork) -> None:
    """Refuse a scorer that does not know all tokens of a network.

    Raises:
        ValueError: says so.
    """
    if scorer is not None and scorer.num_tokens < network.vocab_size:
        raise ValueError(
            f"the scorer was built for {scorer.num_tokens} tokens, but the model has {network.vocab_size}. "
            f"Build it with the spellings of the model that is searched."
        )


def advance_beams(
    beams: Sequence[TransducerBeam], encoder_out: Vectors, num_frames: npt.NDArray[np.integer[Any]]
) -> None:
    """Search further frames of several utterances or streams.

    Args:
        beams: one for each row, all different, all of one class and with the same cache.
        encoder_out: (batch, frames, dim) float32; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) further frames of each row; 0 or less are none.

    Raises:
        ValueError: there is not one of `beams` for each row, or they have not one cache.
    """
    encoder_out = np.ascontiguousarray(encoder_out, dtype=np.float32)
    if not len(beams) and not len(encoder_out):
        return
    cache = common_cache(beams, len(encoder_out), num_frames)
    network, kernel = cache.network, beams[0].kernel
    max_frames = encoder_out.shape[1]
    lengths = np.clip(np.asarray(num_frames, dtype=np.int64), 0, max_frames)
    left, end = lengths.tolist(), int(lengths.max(initial=0))
    frames = encoder_out.reshape(-1, encoder_out.shape[2])
    room = sum(beam.max_rows for beam in beams)
    searches = np.array([beam.address for beam in beams], dtype=np.int64)
    contexts, places = np.empty((room, cache.context_size), dtype=np.int64), np.empty(room, dtype=np.int64)
    fresh, num_fresh = np.empty((room, 3), dtype=np.int64), np.zeros(1, dtype=np.int64)
    durations, unk_id = cache.durations, -1 if cache.unk_id is None else cache.unk_id
    memory: Memory | None = None
    predict: Callable[[Contexts], Vectors]
    if isinstance(cache, StatefulPredictor):
        predict = memory = Memory(cache.network, cast("Sequence[ModifiedBeam]", beams))
    else:
        predict = cache
    steps = np.maximum(durations or 1, 1).astype(np.int64).reshape(-1)
    places_of = [
        addresses.address_of(array) for array in (searches, lengths, contexts, places, fresh, num_fresh, steps)
    ]
    sizes = len(beams), room, cache.context_size, max_frames, network.blank_id, unk_id, len(steps), len(durations)
    record = np.array([(*places_of, *sizes, memory is not None)], dtype=rows.ROWS)
    record_at = addresses.address_of(record)
    width = network.vocab_size + len(durations)
    nothing = np.empty((0, width), dtype=np.float32)
    frame = 0
    while frame < end:
        # Searches have room for a number of frames; room is made in between.
        ready = [beam.ready(length - frame) for beam, length in zip(beams, left, strict=True) if length > frame]
        count = kernel.ask(record_at, frame)
        for now in range(frame, frame + min(ready)):
            logits: Any = nothing
            if count:  # with durations all hypotheses may be ahead of a frame
                logits = network.join(np.take(frames, places[:count], axis=0), predict(contexts[:count]))
            count = kernel.step(record_at, now, as_answers(logits, count, width))
            if memory is not None:
                memory.follow(fresh[: num_fresh[0]])
        frame += min(ready)
    if memory is not None:
        memory.leave()
