"""Paraformers: an encoder that counts the tokens of an utterance, and a decoder that writes all of them at once.

A further decoder, of role `hotword_decoder`, has the last word on tokens where phrases were told, of which
`hotword_encoder` makes vectors.

Both may be one graph, of role `encoder`, as ready-made models have it, or of role `streaming_encoder`.
"""

from collections.abc import Collection
from typing import ClassVar

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.ctc.kind import KIND as CTC
from tritone.kinds.paraformer.part import PARTS, HotwordsPart
from tritone.kinds.speech import SpeechKind
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import FLOAT32, INT64, Specs, Stage
from tritone.pipelines.searching.base import HasOutputs, SearchSettings
from tritone.pipelines.searching.paraformer import STATES, ParaformerSearching, encoder_outputs
from tritone.pipelines.searching.phrases import MAX_TOKENS
from tritone.runtime.graph import TensorSpec


class ParaformerKind(SpeechKind):
    """Outputs have one axis, as those of CTC models."""

    name = "paraformer"
    noun = "a Paraformer"
    parts = PARTS
    modes = ParaformerSearching.modes
    searching = ParaformerSearching
    optional_outputs = CTC.optional_outputs  # of the decoder
    stages: ClassVar[tuple[Stage, ...]] = ()  # a stage hands on frames alone

    def frame_outputs(self, manifest: Manifest) -> Specs:
        if any(artifact.role == "decoder" for artifact in manifest.artifacts):
            decoded = {"encoder_out": TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim))}
        else:
            decoded = {"log_probs": TensorSpec(FLOAT32, (None, None, manifest.tokens.size))}
        return decoded | {"token_sums": TensorSpec(FLOAT32, (None, None)), "num_tokens": TensorSpec(INT64, (None,))}

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        if role == "streaming_encoder":
            inputs, outputs = super().tensors(manifest, role)
            del outputs["token_sums"]
            return inputs, outputs | {"token_frames": TensorSpec(INT64, (None, None))}
        row, table = TensorSpec(INT64, (None,)), TensorSpec(INT64, (None, None))
        log_probs = {"log_probs": TensorSpec(FLOAT32, (None, None, manifest.tokens.size))}
        states = dict.fromkeys(STATES, TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim)))
        phrases = {"phrase_vectors": TensorSpec(FLOAT32, (None, manifest.encoder.output_dim))}
        if role == "hotword_encoder":
            return {"phrases": TensorSpec(INT64, (None, MAX_TOKENS)), "phrase_lengths": row}, phrases
        if role == "hotword_decoder":
            return {**states, "num_tokens": row, **phrases, "listed": table, "num_listed": row}, log_probs
        if role != "decoder":
            return super().tensors(manifest, role)
        inputs = self.frame_outputs(manifest) | {"num_frames": row, "places": row}
        return inputs, log_probs | (states if manifest.find(HotwordsPart) is not None else {})

    def fault(self, manifest: Manifest) -> str | None:
        roles = {artifact.role for artifact in manifest.artifacts}
        has_part = manifest.find(HotwordsPart) is not None
        parts = {"hotword_encoder", "hotword_decoder"}
        if roles & parts != (parts if has_part else set()) or (has_part and "decoder" not in roles):
            return "models that take hotwords have the part `hotwords`, and graphs of decoder, " + ", ".join(
                sorted(parts)
            )
        if manifest.find(HotwordsPart) is not None and manifest.tokens.sos_id is None:
            return "models that take hotwords have `vocabulary.sos_id`"
        return None

    def open_searching(
        self, bundle: Bundle, graph: HasOutputs, settings: SearchSettings | None, placement: Placement
    ) -> ParaformerSearching:
        return ParaformerSearching(bundle, graph, settings, placement=placement)

    def graph_outputs(self, mode: str, available: Collection[str]) -> tuple[str, ...]:
        return encoder_outputs(decoded="encoder_out" not in available)


KIND = ParaformerKind()
