"""The tensors of served models by name, the same as in the deployments that this project replaces."""

from dataclasses import dataclass

from tritone.bundle.part import TensorType

WAV = "WAV"  # FP32 (samples,) in [-1, 1]
WAV_LENS = "WAV_LENS"  # INT32 (1,), valid samples of WAV or PCM
PCM = "PCM"  # INT16 (samples,) in place of WAV: n stands for n / 32768
TRANSCRIPTS = "TRANSCRIPTS"  # STRING (1,)
EMBEDDINGS = "EMBEDDINGS"  # FP32 (dim,)
PROBABILITIES = "PROBABILITIES"  # FP32 (frames,), of speech in each frame; of a stream in the new ones
SEGMENTS = "SEGMENTS"  # STRING (1,), JSON of a SpeechActivity
DETAILS = "DETAILS"  # STRING (1,), JSON of a Transcript; computed for requests that want it
TO_SPEAK = "TEXT"  # STRING (1,), what a voice speaks; its answers have PCM, at its rate
SPOKEN = "SENTENCE"  # STRING (1,), the text that is spoken in an answer
# INT32 (frames,), the best token of each frame; of decoder stages that are built for it, for clients that make text of
# it themselves, as NVIDIA's for Jasper do.
CLASS_IDS = "CLASS_IDS"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input or output of a served model, as its configuration declares it."""

    name: str
    type: TensorType
    dims: tuple[int, ...]  # without the axis of rows; -1 is any size
    ragged: bool = False  # rows of different sizes may share a batch
    optional: bool = False


def audio_inputs(
    wav: str = WAV, lens: str = WAV_LENS, *, lens_optional: bool = False, pcm: bool = True
) -> tuple[Tensor, ...]:
    """Waveforms and their lengths, without which all samples are valid where that is allowed.

    With `pcm` samples may be 16-bit numbers instead; which of the two a request has is for the model to check.
    """
    inputs = (
        Tensor(name=wav, type="FP32", dims=(-1,), ragged=True, optional=pcm),  # nobody pads
        Tensor(name=lens, type="INT32", dims=(1,), optional=lens_optional),
    )
    return (*inputs, Tensor(name=PCM, type="INT16", dims=(-1,), ragged=True, optional=True)) if pcm else inputs
