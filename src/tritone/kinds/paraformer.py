"""Paraformers: an encoder that counts the tokens of an utterance, and a decoder that writes all of them at once."""

from collections.abc import Collection
from typing import ClassVar

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.ctc import CTC
from tritone.kinds.speech import SpeechKind
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import FLOAT32, INT64, Specs, Stage
from tritone.pipelines.searching.base import HasOutputs, SearchSettings
from tritone.pipelines.searching.paraformer import OUTPUTS, ParaformerSearching
from tritone.runtime.graph import TensorSpec


class ParaformerKind(SpeechKind):
    """Whole utterances alone; outputs have one axis, as those of CTC models."""

    name = "paraformer"
    noun = "a Paraformer"
    modes = ParaformerSearching.modes
    searching = ParaformerSearching
    optional_outputs = CTC.optional_outputs  # of the decoder
    stages: ClassVar[tuple[Stage, ...]] = ()  # a stage hands on frames alone

    def frame_outputs(self, manifest: Manifest) -> Specs:
        return {
            "encoder_out": TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim)),
            "token_sums": TensorSpec(FLOAT32, (None, None)),
            "num_tokens": TensorSpec(INT64, (None,)),
        }

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        if role != "decoder":
            return super().tensors(manifest, role)
        row = TensorSpec(INT64, (None,))
        inputs = self.frame_outputs(manifest) | {"num_frames": row, "places": row}
        return inputs, {"log_probs": TensorSpec(FLOAT32, (None, None, manifest.tokens.size))}

    def open_searching(
        self, bundle: Bundle, graph: HasOutputs, settings: SearchSettings | None, placement: Placement
    ) -> ParaformerSearching:
        return ParaformerSearching(bundle, settings, placement=placement)

    def graph_outputs(self, mode: str, available: Collection[str]) -> tuple[str, ...]:
        return OUTPUTS


PARAFORMER = ParaformerKind()
