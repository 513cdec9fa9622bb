"""Transducers: an encoder, and a predictor and a joiner that say what follows a frame and the tokens before it."""

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.speech import SpeechKind
from tritone.kinds.transducer.part import PARTS, TransducerPart
from tritone.later import later
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import FLOAT32, INT64, Specs
from tritone.pipelines.searching.base import HasOutputs, SearchSettings
from tritone.pipelines.searching.transducer import OUTPUTS, GraphNetwork, TransducerSearching
from tritone.runtime.graph import TensorSpec

if TYPE_CHECKING:
    from tritone.search.transducer import compiling
else:
    compiling = later("compiling")


class TransducerKind(SpeechKind):
    """Clients of sherpa's Triton deployment join the elements of an output's first row, so it has two axes."""

    name = "transducer"
    noun = "a transducer"
    parts = PARTS
    modes = TransducerSearching.modes
    searching = TransducerSearching
    later = (
        *("addresses", "compiling", "expanded", "fast_kernel", "fast_pruning", "filling_kernel", "greedy_kernel"),
        *("marks", "modified_kernel", "predictor_kernel", "pruning", "rows", "scorer", "traced"),
    )
    axes = 2

    def fault(self, manifest: Manifest) -> str | None:
        if max(manifest.part(TransducerPart).start) >= manifest.tokens.size:
            start, largest = list(manifest.part(TransducerPart).start), manifest.tokens.size - 1
            return f"transducer.start is {start}, but the largest token id is {largest}"
        return None

    def frame_outputs(self, manifest: Manifest) -> Specs:
        return {"encoder_out": TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim))}

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        vector = TensorSpec(FLOAT32, (None, manifest.encoder.output_dim))
        settings = manifest.part(TransducerPart)
        if role == "joiner":
            logits = TensorSpec(FLOAT32, (None, manifest.tokens.size + len(settings.durations)))
            return {"encoder_out": vector, "predictor_out": vector}, {"logits": logits}
        if role == "predictor":
            states = {each.name: TensorSpec(np.dtype(each.dtype), (None, *each.sizes(0))) for each in settings.states}
            inputs = {"context": TensorSpec(INT64, (None, settings.context_size)), **states}
            return inputs, {"predictor_out": vector, **{f"next_{name}": spec for name, spec in states.items()}}
        return super().tensors(manifest, role)

    def open_searching(
        self, bundle: Bundle, graph: HasOutputs, settings: SearchSettings | None, placement: Placement
    ) -> TransducerSearching:
        network = GraphNetwork(bundle, placement)
        return TransducerSearching(
            bundle, network, settings, threads=placement.threads, device=placement.device, graph=graph
        )

    def graph_outputs(self, mode: str, available: Collection[str]) -> tuple[str, ...]:
        return OUTPUTS

    def compiler(self, mode: str) -> Callable[[], None]:
        return partial(compiling.compile_search, mode)  # type: ignore[arg-type]  # one of `modes`


KIND = TransducerKind()
