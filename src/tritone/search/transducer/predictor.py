"""The predictor's vectors, each computed once: a stateless predictor sees a few tokens, and the same ones come again.

    contexts (rows, context_size) int64  ->  predictor_out (rows, dim) float32

In the middle of an utterance nearly all contexts are known: of those that a search asks for in a frame, most are from
the frame before, and frequent words bring the same ones in every utterance.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.beam.beam import fixed
from tritone.search.transducer.network import Contexts, Network, Vectors

if TYPE_CHECKING:
    from tritone.search.transducer import predictor_kernel
else:
    predictor_kernel = later("predictor_kernel")

MAX_BYTES = 64 << 20  # of vectors: 32768 contexts of width 512
MIN_ROOM = 256  # contexts that there is room for at first; a power of two


class PredictorCache:
    """The vectors of one network's predictor; to be shared by all searches with it, in any number of threads.

    When there is no room for a new context, all are forgotten: the frequent ones are back at once. Two threads that
    miss a context at the same time may both compute it.

    `durations`: none, see `StatefulNetwork`.
    """

    durations: tuple[int, ...] = ()

    def __init__(self, network: Network, *, max_bytes: int = MAX_BYTES) -> None:
        """Start empty.

        Args:
            max_bytes: of vectors to keep; at least one is kept. Keys and the hash table come on top, about
                8 bytes for each token of a context and 16 for each context.
        """
        self.network = network
        self.context_size = len(network.start)
        self.unk_id = network.unk_id
        self.max_bytes = max_bytes
        self._kernel = predictor_kernel
        self._lock = threading.Lock()
        self._count = 0
        self._keys: Contexts = np.empty((0, self.context_size), dtype=np.int64)
        self._vectors: Vectors = np.empty((0, 0), dtype=np.float32)
        self._slots = np.full(1, -1, dtype=np.int32)

    def __len__(self) -> int:
        return self._count

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self._vectors.nbytes + self._slots.nbytes

    def __call__(self, contexts: Contexts) -> Vectors:
        """Vectors (rows, dim) of contexts (rows, context_size); the network computes those it never saw, in one call.

        Raises:
            ValueError: the contexts are of another size, or there is not one vector for each.
        """
        contexts = fixed(np.ascontiguousarray(contexts, dtype=np.int64))
        if contexts.ndim != 2 or contexts.shape[1] != self.context_size:
            raise ValueError(f"contexts must be (rows, {self.context_size}), got {contexts.shape}")
        found = np.empty(len(contexts), dtype=np.int64)
        missing = np.empty(len(contexts), dtype=np.int64)
        with self._lock:
            num_missing = self._kernel.look_up(contexts, self._keys, self._slots, found, missing)
            if not num_missing:
                return np.take(self._vectors, found, axis=0)
        new = contexts[missing[:num_missing]]
        vectors = self._predict(new)  # others go on meanwhile
        with self._lock:
            self._add(new, fixed(vectors))
            if not self._kernel.look_up(contexts, self._keys, self._slots, found, missing):
                return np.take(self._vectors, found, axis=0)
        return self._predict(contexts.copy())  # some were forgotten just now; what a network gets may be written to

    def _predict(self, contexts: Contexts) -> Vectors:
        vectors = self.network.predict(contexts)
        if vectors.ndim != 2 or len(vectors) != len(contexts):
            raise ValueError(f"the predictor must give {len(contexts)} vectors, got {vectors.shape}")
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def _add(self, contexts: Contexts, vectors: Vectors) -> None:
        if len(self._vectors) and self._vectors.shape[1] != vectors.shape[1]:  # compiled code does not check it
            raise ValueError(
                f"the predictor must give vectors of one width; got {vectors.shape[1]} after {self._vectors.shape[1]}"
            )
        most = max(1, self.max_bytes // max(1, vectors.shape[1] * vectors.itemsize))
        if self._count + len(contexts) > most:
            self._count = 0
            self._slots[:] = -1
            contexts, vectors = contexts[:most], vectors[:most]
        needed = self._count + len(contexts)
        if needed > len(self._keys):
            room = min(most, max(MIN_ROOM, 1 << (needed - 1).bit_length()))
            self._keys = _grown(self._keys[: self._count], (room, self.context_size))
            self._vectors = _grown(self._vectors[: self._count], (room, vectors.shape[1]))
            self._slots = np.full(4 << (room - 1).bit_length(), -1, dtype=np.int32)
            self._kernel.index(self._keys, self._count, self._slots)
        self._count = self._kernel.add(contexts, vectors, self._keys, self._vectors, self._slots, self._count)


Cache = TypeVar("Cache", covariant=True)


class Search(Protocol[Cache]):
    """A search under way; `cache` is of the network that it searches with."""

    @property
    def cache(self) -> Cache: ...


def common_cache(searches: Sequence[Search[Cache]], batch: int, num_frames: Sequence[Any] | npt.NDArray[Any]) -> Cache:
    """The cache of searches that advance together, one for each row of a batch.

    Raises:
        ValueError: there is not one search for each row, or not one cache of all.
    """
    if not len(searches) == batch == len(num_frames) or len({id(search) for search in searches}) != batch:
        raise ValueError(
            f"each row needs a search of its own and a number of frames; got {batch} rows, {len(searches)} searches "
            f"({len({id(search) for search in searches})} different ones) and {len(num_frames)} numbers"
        )
    caches = {id(search.cache): search.cache for search in searches}
    if len(caches) != 1:
        raise ValueError(f"searches that advance together must share one PredictorCache, got {len(caches)} of them")
    return searches[0].cache


def _grown(array: npt.NDArray[Any], shape: tuple[int, int]) -> npt.NDArray[Any]:
    larger = np.empty(shape, dtype=array.dtype)
    if len(array):
        larger[: len(array)] = array
    return larger
