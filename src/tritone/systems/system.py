"""What every system has in common: audio files in, a result for each of them.

    system.run(paths)  ->  Result, Result, ...   in any order, each as soon as it is there

A system either takes whole files (offline), or plays them into streams (`Playback`) and notes every answer on the way.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Literal, Protocol, TypeVar

from tritone.audio.files import Selection
from tritone.systems.streams import PartialListener

Mode = Literal["offline", "streaming"]
AnyResult_co = TypeVar("AnyResult_co", covariant=True)


class System(Protocol[AnyResult_co]):
    """A model that turns files into results, such as `TranscriptResult` or `EmbeddingResult`."""

    name: str
    mode: Mode
    concurrency: int
    """Requests or streams at once; in process and offline, files that are given to the model together."""

    batch: int
    """Files whose results may depend on each other in the last bits: a run that begins at a multiple has the same."""

    def describe(self) -> Mapping[str, str]:
        """What decides the values: kind, model, options. Equal descriptions may continue each other's work."""
        ...

    def prepare(self, *, warm_up: bool = False) -> None:
        """Find or open the model, so that what is wrong with it is reported before any file is read.

        Args:
            warm_up: also run a little silence, so that the first file is not slower than the others.

        Raises:
            TritoneError: there is no such model, or it cannot be used.
            ValueError: an option that makes no sense, such as an unknown device.
        """
        ...

    def run(
        self, paths: Iterable[str | Selection], on_partial: PartialListener | None = None
    ) -> Generator[AnyResult_co, None, None]:
        """Transcribe or embed files. A file that fails has its error in its result and does not disturb the others.

        Files are read when there is room for them, so `paths` may be of any length. Leaving the loop early gives up
        what is in flight. `on_partial` gets every answer of a stream.
        """
        ...

    def close(self) -> None:
        """Free what the system holds; closing twice is fine."""
        ...
