"""The graphs of a NeMo bundle, as modules ready for export; contracts in docs/design.md.

OfflineGraph     waveform, num_samples        ->  log_probs, num_frames, encoder_out; of a transducer the last two
                 (and language, of a model that is told it)
PredictorGraph   context, hidden, cell        ->  predictor_out, next_hidden, next_cell

Encoder and predictor end with the joint network's projections, as icefall's do.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Run, UtteranceGraph
from tritone.families.export.joiner import TRIAL_ROWS
from tritone.families.export.precision import as_dtype
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.model import NemoModel
from tritone.families.nemo.options import Head
from tritone.families.nemo.transducer import Joint, Predictor

TRIAL_TOKENS = 3  # of each row, one after the other


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64.

    Of a model that is told the language, its number too: language (batch,) int64.
    """

    def __init__(self, model: NemoModel, front_end: LogMel, head: Head) -> None:
        super().__init__()
        self.front_end, self.encoder = front_end, model.encoder
        self.ctc = model.ctc if head == "ctc" else None
        self.projection = None if model.joint is None or head == "ctc" else model.joint.enc
        self.compared = ("log_probs",) if self.projection is None else ("encoder_out",)
        self.sample_rate = model.config.features.sample_rate
        self.prompts, self.prompt_kernel = model.config.prompts, model.prompt_kernel

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return super().dynamic | ({} if self.prompts is None else {"language": {0: "batch"}})

    def _told(self, run: Run) -> Run:
        """A run with languages, all of them in turn, and the usual one for a single utterance."""
        if (prompts := self.prompts) is None:
            return run
        known = torch.tensor([prompts.ids[prompts.default], *prompts.ids.values()])
        return Run(
            [{**step, "language": known[torch.arange(len(step["waveform"])) % len(known)]} for step in run.steps]
        )

    def example(self) -> dict[str, Tensor]:
        return dict(self._told(Run([super().example()])).steps[0])

    def trials(self) -> Iterator[Run]:
        yield from map(self._told, super().trials())

    def hearing(self, waveform: Waveform) -> Run | None:
        run = super().hearing(waveform)
        return None if run is None else self._told(run)

    @property
    def width(self) -> int:
        """Of `encoder_out`."""
        return self.encoder.output_dim if self.projection is None else self.projection.out_features

    @property
    def min_samples(self) -> int:
        return self.front_end.min_samples

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames", "encoder_out"] if self.projection is None else ["encoder_out", "num_frames"]

    def acoustic(self, features: Tensor, num_samples: Tensor, language: Tensor | None = None) -> tuple[Tensor, ...]:
        """What `forward` gives, of features (batch, frames, bins) that are ready."""
        encoded, num_frames = self.encoder(features, self.front_end.num_frames(num_samples))
        if self.prompt_kernel is not None:
            assert language is not None
            encoded = self.prompt_kernel(encoded, language)
        if self.projection is not None:
            return as_dtype(self.projection(encoded), torch.float32), num_frames
        assert self.ctc is not None
        return self.ctc(encoded), num_frames, as_dtype(encoded, torch.float32)

    def forward(self, waveform: Tensor, num_samples: Tensor, language: Tensor | None = None) -> tuple[Tensor, ...]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples, language)


class PredictorGraph(ExportableGraph):
    """The newest token (rows, 1) int64, negative where there is none, and the state of what came before it."""

    compared = ("predictor_out",)  # of several tokens: what is wrong in a state is seen in the next one's
    counted = None
    quantised = False  # search asks for each token once

    def __init__(self, predictor: Predictor, joint: Joint) -> None:
        super().__init__()
        self.predictor, self.projection = predictor, joint.pred
        shape = (predictor.config.layers, predictor.config.hidden)
        self.state_shapes: Mapping[str, tuple[int, ...]] = {"hidden": shape, "cell": shape}

    @property
    def outputs(self) -> list[str]:
        return ["predictor_out", *(f"next_{name}" for name in self.state_shapes)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {name: {0: "rows"} for name in ("context", *self.state_shapes)}

    def zero_states(self, rows: int) -> dict[str, Tensor]:
        """The states before the first token."""
        return {name: torch.zeros(rows, *shape) for name, shape in self.state_shapes.items()}

    def example(self) -> dict[str, Tensor]:
        return {"context": torch.zeros(EXAMPLE_BATCH, 1, dtype=torch.int64), **self.zero_states(EXAMPLE_BATCH)}

    def trials(self) -> Iterator[Run]:
        """Some tokens of any ids one after the other, and in one row none at first."""
        random = torch.Generator().manual_seed(0)
        size = (TRIAL_TOKENS, TRIAL_ROWS, 1)
        tokens = torch.randint(self.predictor.embed.num_embeddings, size, generator=random)
        tokens[0, 0] = -1
        yield Run([{"context": step} for step in tokens], self.zero_states(TRIAL_ROWS))

    def forward(self, context: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dtype = self.projection.weight.dtype
        predicted, *states = self.predictor(context, as_dtype(hidden, dtype), as_dtype(cell, dtype))
        next_hidden, next_cell = (as_dtype(state, torch.float32) for state in states)
        return as_dtype(self.projection(predicted), torch.float32), next_hidden, next_cell
