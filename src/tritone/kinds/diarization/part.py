"""The part of the manifest of networks that tell speakers apart."""

from typing import Annotated

from pydantic import Field, model_validator

from tritone.bundle.part import AUDIO, KindPart, NonNegative, Part, Parts, Positive


class DiarizationStep(Part):
    """How audio is cut into steps, in encoder frames.

    A step judges `chunk_size` of them, for which it hears `lookahead` more; where the audio ends before its window
    does, at most `last_frames`. `fifo_length` of the newest are kept as they came; when there are more, `update_period`
    of them at least move to the speaker cache.
    """

    chunk_size: Positive
    lookahead: NonNegative
    last_frames: Positive
    fifo_length: Positive
    update_period: Positive


class DiarizationPart(KindPart):
    """`speakers`: how many a model can distinguish. `recordings`: the steps of whole ones; `streams`: those that
    streams may have, one for each chunk size.
    """

    key = "diarization"
    speakers: Annotated[int, Field(ge=1, le=1024)]
    recordings: DiarizationStep
    streams: Annotated[tuple[DiarizationStep, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _has_one_for_each_size(self) -> "DiarizationPart":
        sizes = [each.chunk_size for each in (self.recordings, *self.streams)]
        if len(set(sizes)) < len(sizes):
            raise ValueError(f"diarization: chunk sizes should differ, got {sizes}")
        return self

    def step(self, chunk_size: int) -> DiarizationStep:
        """The steps of a chunk size; raises `ValueError` if there are none."""
        for each in (self.recordings, *self.streams):
            if each.chunk_size == chunk_size:
                return each
        raise ValueError(
            f"the model has no steps of {chunk_size} encoder frames; take one of "
            f"{', '.join(str(each.chunk_size) for each in self.streams)}"
        )

    def ahead(self, chunk_size: int) -> int:
        return self.step(chunk_size).lookahead


PARTS = Parts(needs=(*AUDIO, "streaming"), own=(DiarizationPart,))
