"""The graphs of a NeMo bundle, as modules ready for export; contracts in docs/design.md.

OfflineGraph     waveform, num_samples          ->  log_probs, num_frames, encoder_out; of a transducer the last two
                 (and language, of a model that takes it)
StreamingGraph   waveform, num_samples, states  ->  the same, and next states
                 (and language, before the states)
PredictorGraph   context, hidden, cell          ->  predictor_out, next_hidden, next_cell

Encoders and predictor end with the joint network's projections, as icefall's do.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from tritone.audio import Waveform
from tritone.bundle.manifest import LEFT_FRAMES
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Run, UtteranceGraph, trial_signal
from tritone.families.export.joiner import TRIAL_ROWS
from tritone.families.export.precision import as_dtype, kept_as
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.model import NemoModel
from tritone.families.nemo.options import Head
from tritone.families.nemo.streaming import OFFSET, StreamingEncoder
from tritone.families.nemo.transducer import Joint, Predictor

TRIAL_TOKENS = 3  # of each row, one after the other
EXAMPLE_SIZES = 6, 11  # chunk and past frames, of no particular size
MAX_TRIAL_CHUNKS = 6  # of the past


class EncoderOutput(nn.Module):
    """What search wants of encoder frames, projected for the joint network or log-probabilities and the frames; and the
    language that is mixed into them first, of a model that takes it.
    """

    def __init__(self, model: NemoModel, head: Head) -> None:
        super().__init__()
        self.ctc = model.ctc if head == "ctc" else None
        self.projection = None if model.joint is None or head == "ctc" else model.joint.enc
        self.prompts, self.prompt_kernel = model.config.prompts, model.prompt_kernel
        self.width = model.encoder.output_dim if self.projection is None else self.projection.out_features

    @property
    def names(self) -> list[str]:
        """Outputs of a graph that ends with this."""
        return ["log_probs", "num_frames", "encoder_out"] if self.projection is None else ["encoder_out", "num_frames"]

    @property
    def inputs(self) -> list[str]:
        """Inputs of such a graph beside waveforms, each a number of a row."""
        return [] if self.prompts is None else ["language"]

    def with_language(self, run: Run) -> Run:
        """A run with languages, all of them in turn, and the usual one for a single row."""
        if (prompts := self.prompts) is None:
            return run
        known = torch.tensor([prompts.ids[prompts.default], *prompts.ids.values()])
        steps = [{**step, "language": known[torch.arange(len(step["waveform"])) % len(known)]} for step in run.steps]
        return Run(steps, run.states)

    def forward(self, encoded: Tensor, num_frames: Tensor, language: Tensor | None = None) -> tuple[Tensor, ...]:
        if self.prompt_kernel is not None:
            assert language is not None
            encoded = self.prompt_kernel(encoded, language)
        if self.projection is not None:
            return as_dtype(self.projection(encoded), torch.float32), num_frames
        assert self.ctc is not None
        return self.ctc(encoded), num_frames, as_dtype(encoded, torch.float32)


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64.

    Of a model that takes the language, its number too: language (batch,) int64.
    """

    def __init__(self, model: NemoModel, front_end: LogMel, head: Head) -> None:
        super().__init__()
        self.front_end, self.encoder = front_end, model.encoder
        self.output = EncoderOutput(model, head)
        self.compared = tuple(self.output.names[:1])
        self.sample_rate = model.config.features.sample_rate

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return super().dynamic | {name: {0: "batch"} for name in self.output.inputs}

    def example(self) -> dict[str, Tensor]:
        return dict(self.output.with_language(Run([super().example()])).steps[0])

    def trials(self) -> Iterator[Run]:
        yield from map(self.output.with_language, super().trials())

    def hearing(self, waveform: Waveform) -> Run | None:
        run = super().hearing(waveform)
        return None if run is None else self.output.with_language(run)

    @property
    def min_samples(self) -> int:
        return self.front_end.min_samples

    @property
    def outputs(self) -> list[str]:
        return self.output.names

    def acoustic(self, features: Tensor, num_samples: Tensor, language: Tensor | None = None) -> tuple[Tensor, ...]:
        """What `forward` gives, of features (batch, frames, bins) that are ready."""
        return self.output(*self.encoder(features, self.front_end.num_frames(num_samples)), language)

    def forward(self, waveform: Tensor, num_samples: Tensor, language: Tensor | None = None) -> tuple[Tensor, ...]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples, language)


class StreamingGraph(ExportableGraph):
    """One window of many streams: of any chunk size and with as many past frames as it is given, see `streaming.py`.

    Args:
        model: a causal one.
        contexts: the chunk sizes that it was trained for and the past frames of each, see `contexts_of_streams`.
        chunk_size: encoder frames a step, unless something else is chosen when it is run.
    """

    def __init__(
        self, model: NemoModel, front_end: LogMel, head: Head, contexts: Mapping[int, int], chunk_size: int
    ) -> None:
        super().__init__()
        self.front_end = front_end
        self.step = StreamingEncoder(model.encoder, [*contexts.items(), EXAMPLE_SIZES])
        self.output = EncoderOutput(model, head)
        self.compared = tuple(self.output.names[:1])
        self.contexts, self.chunk_size, self.factor = contexts, chunk_size, model.config.encoder.factor
        self.sample_rate = model.config.features.sample_rate

    def window_for(self, chunk_size: int) -> int:
        """Samples that give exactly `chunk_size` encoder frames."""
        frames = self.factor * chunk_size + self.factor - 1
        return (frames - 1) * self.front_end.frame_shift + self.front_end.frame_length + 1

    def shift_for(self, chunk_size: int) -> int:
        """Samples from one window to the next."""
        return chunk_size * self.factor * self.front_end.frame_shift

    @property
    def lead_samples(self) -> int:
        """Zeros before a stream's first sample: of the features before its first, and of this one."""
        return 2 * (self.factor - 1) * self.front_end.frame_shift + self.front_end.lead_samples + 1

    @property
    def flush_samples(self) -> int:
        """How far after the end of the audio steps may begin: encoder frame n needs factor · (n - 1) + 2 features."""
        return (self.factor - 2) * self.front_end.frame_shift + 1

    @property
    def state_shapes(self) -> dict[str, tuple[int | Literal["left_frames"], ...]]:
        """As of `StreamingEncoder.state_shapes`."""
        return self.step.state_shapes

    def zero_states(self, batch: int, left_frames: int) -> dict[str, Tensor]:
        """The states of streams that start, with room for `left_frames` past frames."""
        return {
            name: torch.zeros(
                batch,
                *(left_frames if axis == LEFT_FRAMES else axis for axis in shape),
                dtype=torch.int64 if name == OFFSET else kept_as(self.step.dtype),
            )
            for name, shape in self.state_shapes.items()
        }

    @property
    def outputs(self) -> list[str]:
        return [*self.output.names, *(f"next_{name}" for name in self.state_shapes)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        names = ("waveform", "num_samples", *self.output.inputs, *self.state_shapes)
        axes = {name: {0: "batch"} for name in names}
        axes["waveform"][1] = "samples"
        axes["att_cache"][self.state_shapes["att_cache"].index(LEFT_FRAMES) + 1] = LEFT_FRAMES
        return axes

    def example(self) -> dict[str, Tensor]:
        chunk_size, left_frames = EXAMPLE_SIZES
        samples = self.window_for(chunk_size)
        step = {
            "waveform": torch.zeros(EXAMPLE_BATCH, samples),
            "num_samples": torch.full((EXAMPLE_BATCH,), samples),
        }
        return {**self.output.with_language(Run([step])).steps[0], **self.zero_states(EXAMPLE_BATCH, left_frames)}

    def trials(self) -> Iterator[Run]:
        """Of each context two streams: one ends in its second step, the other when it has forgotten its start."""
        for chunk_size, left_frames in {(self.chunk_size, self.contexts[self.chunk_size]), *self.contexts.items()}:
            window, shift = self.window_for(chunk_size), self.shift_for(chunk_size)
            left_chunks = min(left_frames // chunk_size, MAX_TRIAL_CHUNKS)
            count = left_chunks + 2
            signal = trial_signal(shift * count + window, self.sample_rate)
            signal = torch.cat([torch.zeros(self.lead_samples), signal])
            ends = torch.tensor([shift * count + window // 2, shift + window // 3])
            steps = [
                {
                    "waveform": signal[start : start + window].repeat(2, 1),
                    "num_samples": torch.clamp(ends - start, min=0, max=window),
                }
                for start in range(0, shift * count, shift)
            ]
            yield self.output.with_language(Run(steps, self.zero_states(2, left_chunks * chunk_size)))

    def hearing(self, waveform: Waveform) -> Run:
        """A recording as the steps of a stream of the usual chunk size, until it is flushed."""
        window, shift = self.window_for(self.chunk_size), self.shift_for(self.chunk_size)
        padded = np.concatenate([np.zeros(self.lead_samples, np.float32), waveform])
        steps = []
        for start in range(0, len(waveform) + self.flush_samples, shift):
            piece = padded[start : start + window]
            block = np.zeros((1, window), np.float32)
            block[0, : len(piece)] = piece
            steps.append({"waveform": torch.from_numpy(block), "num_samples": torch.tensor([len(piece)])})
        return self.output.with_language(Run(steps, self.zero_states(1, self.contexts[self.chunk_size])))

    def forward(self, waveform: Tensor, num_samples: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        language, states = more[: len(self.output.inputs)], more[len(self.output.inputs) :]
        encoded, num_frames, *next_states = self.step(*self.front_end.of_window(waveform, num_samples), *states)
        return (*self.output(encoded, num_frames, *language), *next_states)


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
