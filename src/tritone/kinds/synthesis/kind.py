"""Voices: texts become speech."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tritone.audio.pcm import to_pcm
from tritone.audio.spoken import Spoken
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.errors import InputError
from tritone.kinds.synthesis.options import PARAMETERS, SynthesisOptions
from tritone.kinds.synthesis.part import PARTS, SynthesisPart
from tritone.kinds.synthesis.phonemes import Espeak
from tritone.kinds.synthesis.pipeline import MAX_PHONEMES, SynthesisPipeline, synthesis_of
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import FLOAT32, INT64, Kind, Mode, Served, Specs
from tritone.pipelines.wire import PCM, SPOKEN, TO_SPEAK, Tensor
from tritone.runtime.graph import Array, TensorSpec


class SynthesisKind(Kind):
    """A waveform for each sentence of a text."""

    name = "synthesis"
    noun = "a voice"
    does = "it speaks texts"
    usage = "Use it with tritone.load or `tritone speak`"
    in_process = "tritone.kinds.synthesis.model:Voice"
    answers = "synthesis"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"synthesis": "model"}
    options = SynthesisOptions
    parameters = PARAMETERS
    later = ()
    call_sizes = (MAX_PHONEMES / 4, MAX_PHONEMES / 2, float(MAX_PHONEMES))  # phonemes

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        inputs = {
            "phonemes": TensorSpec(INT64, (None, None)),
            "num_phonemes": TensorSpec(INT64, (None,)),
            "scales": TensorSpec(FLOAT32, (3,)),
        }
        if manifest.part(SynthesisPart).speakers:
            inputs["speaker"] = TensorSpec(INT64, (None,))
        return inputs, {"waveform": TensorSpec(FLOAT32, (None, None))}

    def served(self, bundle: Bundle) -> Served:
        part = synthesis_of(bundle)
        return Served(languages=(part.language,) if part.language else (), speakers=tuple(part.speakers))

    def check_machine(self, bundle: Bundle) -> None:
        Espeak(synthesis_of(bundle).espeak_voice)

    def open(
        self, bundle: Bundle, *, placement: Placement, max_audio_s: float = 0.0, defaults: Any = None
    ) -> SynthesisPipeline:
        return SynthesisPipeline(bundle, placement=placement)

    def inputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (Tensor(name=TO_SPEAK, type="STRING", dims=(1,)),)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (Tensor(name=PCM, type="INT16", dims=(-1,)), Tensor(name=SPOKEN, type="STRING", dims=(1,)))

    def read(self, tensors: Mapping[str, Array], *, sample_rate: int, max_audio_s: float) -> Sequence[str]:
        texts = tensors[TO_SPEAK].reshape(-1)
        if len(texts) != 1:
            raise InputError(f"{TO_SPEAK} has {len(texts)} texts; each request has one")
        try:
            return [texts[0].decode() if isinstance(texts[0], bytes) else str(texts[0])]
        except UnicodeDecodeError as error:
            raise InputError(f"{TO_SPEAK} is not UTF-8: byte 0x{error.object[error.start]:02x}; send UTF-8") from None

    def read_options(
        self, pipeline: SynthesisPipeline, parameters: Mapping[str, Any], wanted: Collection[str]
    ) -> SynthesisOptions:
        return pipeline.options.changed(parameters) if parameters else pipeline.options

    def answer(self, results: Sequence[Spoken], wanted: Collection[str]) -> dict[str, Array]:
        """A sentence: its samples, (1, samples) int16, and its text, (1, 1)."""
        (found,) = results
        return {
            PCM: to_pcm(found.waveform)[None],
            SPOKEN: np.array([[found.text.encode()]], dtype=object),
        }


KIND = SynthesisKind()
