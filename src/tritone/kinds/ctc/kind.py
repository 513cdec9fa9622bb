"""CTC models: a distribution over tokens for each frame, and perhaps an attention decoder that ranks hypotheses."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.ctc.part import PARTS, DecoderPart
from tritone.kinds.speech import SpeechKind
from tritone.later import later
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import FLOAT32, INT64, Specs
from tritone.pipelines.searching.base import HasOutputs, SearchSettings
from tritone.pipelines.searching.ctc import BEST, CtcSearching, ctc_outputs
from tritone.runtime.graph import TensorSpec

if TYPE_CHECKING:
    from tritone.pipelines.searching import rescoring
    from tritone.search.ctc import prefix_beam
else:
    rescoring, prefix_beam = later("rescoring"), later("prefix_beam")


class CtcKind(SpeechKind):
    """Clients of WeNet's runtime take the first element of an output for the text, so it has one axis."""

    name = "ctc"
    noun = "a CTC model"
    parts = PARTS
    modes = CtcSearching.modes
    searching = CtcSearching
    later = (
        *("addresses", "decoder_sizes", "filling_kernel", "marks", "prefix_beam", "prefix_kernel", "pruning"),
        *("rescoring", "scorer", "top_tokens"),
    )
    has_class_ids = True
    optional_outputs = {  # noqa: RUF012  # nobody changes it
        "best_tokens": TensorSpec(INT64, (None, None)),
        "best_log_probs": TensorSpec(FLOAT32, (None, None)),
    }

    def frame_outputs(self, manifest: Manifest) -> Specs:
        return {"log_probs": TensorSpec(FLOAT32, (None, None, manifest.tokens.size))}

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        if role != "decoder":
            return super().tensors(manifest, role)
        inputs = {
            "encoder_out": TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim)),
            "num_frames": TensorSpec(INT64, (None,)),
            "hypotheses": TensorSpec(INT64, (None, None, None)),
            "num_tokens": TensorSpec(INT64, (None, None)),
        }
        part = manifest.find(DecoderPart)
        sides = ("left", "right") if part is not None and part.bidirectional else ("left",)
        return inputs, {f"{side}_scores": TensorSpec(FLOAT32, (None, None)) for side in sides}

    def open_searching(
        self, bundle: Bundle, graph: HasOutputs, settings: SearchSettings | None, placement: Placement
    ) -> CtcSearching:
        return CtcSearching(
            bundle,
            graph,
            settings,
            threads=placement.threads,
            open_rescorer=lambda: rescoring.Rescorer(bundle, placement),
        )

    def graph_outputs(self, mode: str, available: Collection[str]) -> tuple[str, ...]:
        return ctc_outputs([mode], has_best=set(BEST) <= set(available))  # type: ignore[list-item]  # one of `modes`

    def compiler(self, mode: str) -> Callable[[], None] | None:
        return None if mode == "greedy" else _compile_prefix_beam


def _compile_prefix_beam() -> None:
    prefix_beam.compile_search()  # loads numba


KIND = CtcKind()
