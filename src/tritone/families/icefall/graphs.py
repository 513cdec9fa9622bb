"""The graphs that an icefall bundle holds, as modules ready for export; contracts in docs/design.md.

OfflineGraph     waveform, num_samples                ->  encoder_out, num_frames
StreamingGraph   waveform, num_samples, states        ->  the same, and next states
PredictorGraph   context                              ->  predictor_out

Encoder and predictor end with the joiner's projections: an encoder frame is joined with many contexts, and a context
with many frames. With a CTC head, the encoders give log_probs, num_frames, encoder_out, and there are no others.
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from tritone.audio import Waveform
from tritone.errors import ExportError
from tritone.families.export.exportable import (
    EXAMPLE_BATCH,
    ExportableGraph,
    Run,
    UtteranceGraph,
    trial_signal,
)
from tritone.families.export.joiner import TRIAL_ROWS
from tritone.families.export.precision import as_dtype
from tritone.families.icefall.model import CtcHead, IcefallModel, streaming_step
from tritone.families.icefall.options import Head
from tritone.families.icefall.stateless import Joiner, StatelessPredictor
from tritone.families.layers.fbank import Fbank, FrontEnd

SAMPLE_RATE = 16000  # Hz; the only one that the recipes train with
FRAME_LENGTH, FRAME_SHIFT = 400, 160  # samples
HIGH_FREQ = -400.0  # Hz below Nyquist
SAMPLE_SCALE = 1.0
PADDING = math.log(1e-10)  # of features, in upstream's batches and after the end of streams
PROCESSED = "processed"  # the state that counts what a stream has had, 0 before its first step

TRIAL_STEPS = 3


def make_fbank(num_mel_bins: int) -> Fbank:
    """The features that icefall's recipes train with: lhotse's, with dither off."""
    return Fbank(
        sample_rate=SAMPLE_RATE,
        frame_length=FRAME_LENGTH,
        frame_shift=FRAME_SHIFT,
        num_mel_bins=num_mel_bins,
        high_freq=HIGH_FREQ,
        snip_edges=False,
        sample_scale=SAMPLE_SCALE,
        padding_value=PADDING,
    )


def feature_bins(model: IcefallModel) -> int:
    """Bins of the features that a model takes."""
    config = model.config.encoder
    return getattr(config, "feature_dim", 0) or config.input_dim  # type: ignore[union-attr]  # one name each


class EncoderOutput(nn.Module):
    """What search wants of encoder frames: projected for the joiner, or log-probabilities of a CTC head and the frames.

    Raises:
        ExportError: the model does not have that head.
    """

    def __init__(self, model: IcefallModel, head: Head) -> None:
        super().__init__()
        self.projection: nn.Linear | None = None
        self.ctc: CtcHead | None = None
        if head == "transducer":
            self.projection = model.joiner.encoder_proj
            self.width = model.joiner.dim
        elif model.ctc is None:
            raise ExportError("this model has no CTC head (no tensors ctc_output.*); export it with --head transducer")
        else:
            self.ctc = model.ctc
            self.width = model.encoder.output_dim

    @property
    def compared(self) -> tuple[str, ...]:
        return ("encoder_out",) if self.ctc is None else ("log_probs",)

    @property
    def names(self) -> list[str]:
        """Outputs of a graph that ends with this."""
        return ["encoder_out", "num_frames"] if self.ctc is None else ["log_probs", "num_frames", "encoder_out"]

    def forward(self, encoded: Tensor, num_frames: Tensor) -> tuple[Tensor, ...]:
        if self.projection is not None:
            return as_dtype(self.projection(encoded), torch.float32), num_frames
        assert self.ctc is not None
        return self.ctc(encoded), num_frames, as_dtype(encoded, torch.float32)


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64."""

    sample_rate = SAMPLE_RATE
    trial_seconds = (0.25, 1.3, 2.9)
    single_rows_in_int8 = True

    def __init__(self, model: IcefallModel, front_end: FrontEnd, head: Head) -> None:
        super().__init__()
        self.front_end = front_end
        self.encoder = model.encoder
        self.output = EncoderOutput(model, head)
        self.compared = self.output.compared

    @property
    def min_samples(self) -> int:
        return self.front_end.least_samples(self.encoder.min_frames)

    @property
    def outputs(self) -> list[str]:
        return self.output.names

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        return self.output(*self.encoder(features, self.front_end.num_frames(num_samples)))


class StreamingGraph(ExportableGraph):
    """One window of many streams; its sizes are chosen here.

    Args:
        model: a causal model.
        front_end: makes features from samples.
        head: what is to come out.
        chunk_size, left_context, right_context: in frames as the network counts them, see `streaming_step`.

    Raises:
        ExportError: the model cannot be streamed, or not with these sizes.
    """

    def __init__(
        self,
        model: IcefallModel,
        front_end: FrontEnd,
        head: Head,
        chunk_size: int,
        left_context: int,
        right_context: int,
    ) -> None:
        super().__init__()
        self.front_end = front_end
        self.step = streaming_step(model.encoder, chunk_size, left_context, right_context)
        self.output = EncoderOutput(model, head)
        self.compared = self.output.compared
        self.state_shapes: dict[str, tuple[int, ...]] = dict(self.step.state_shapes)

    @property
    def chunk_frames(self) -> int:
        """Encoder frames of a step."""
        return self.step.chunk_frames

    @property
    def window_samples(self) -> int:
        return self.front_end.window_samples(self.step.window_frames)

    @property
    def shift_samples(self) -> int:
        return self.step.shift_frames * self.front_end.frame_shift

    @property
    def flush_samples(self) -> int:
        """How far after the end of the audio steps may begin."""
        return self.front_end.flush_samples(self.step.pad_frames)

    def zero_states(self, batch: int) -> dict[str, Tensor]:
        """The states of streams that start."""
        return {
            name: torch.zeros(batch, *shape, dtype=torch.int64 if name == PROCESSED else torch.float32)
            for name, shape in self.state_shapes.items()
        }

    @property
    def outputs(self) -> list[str]:
        return [*self.output.names, *(f"next_{name}" for name in self.state_shapes)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {name: {0: "batch"} for name in ("waveform", "num_samples", *self.state_shapes)}

    def example(self) -> dict[str, Tensor]:
        return {
            "waveform": torch.zeros(EXAMPLE_BATCH, self.window_samples),
            "num_samples": torch.full((EXAMPLE_BATCH,), self.window_samples),
            **self.zero_states(EXAMPLE_BATCH),
        }

    def trials(self) -> Iterator[Run]:
        """Two streams, one of which ends in its second step."""
        window, shift = self.window_samples, self.shift_samples
        signal = trial_signal(shift * TRIAL_STEPS + window, SAMPLE_RATE)
        ends = torch.tensor([shift * (TRIAL_STEPS - 1) + window // 2, shift + window // 3])
        steps = [
            {
                "waveform": signal[start : start + window].repeat(2, 1),
                "num_samples": torch.clamp(ends - start, min=0, max=window),
            }
            for start in range(0, shift * TRIAL_STEPS, shift)
        ]
        yield Run(steps, self.zero_states(2))

    def hearing(self, waveform: Waveform) -> Run:
        """A recording as the steps of a stream, until it is flushed."""
        window, shift, lead = self.window_samples, self.shift_samples, self.front_end.lead_samples
        padded = np.concatenate([np.zeros(lead, np.float32), waveform])
        steps = []
        for start in range(0, len(waveform) + self.flush_samples, shift):
            piece = padded[start : start + window]
            block = np.zeros((1, window), np.float32)
            block[0, : len(piece)] = piece
            steps.append({"waveform": torch.from_numpy(block), "num_samples": torch.tensor([len(piece)])})
        return Run(steps, self.zero_states(1))

    def forward(self, waveform: Tensor, num_samples: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        starts = states[list(self.state_shapes).index(PROCESSED)] == 0
        feats, num_valid = self.front_end(waveform, num_samples, starts)
        encoded, num_frames, *next_states = self.step(feats, num_valid, *states)
        return (*self.output(encoded, num_frames), *next_states)


class PredictorGraph(ExportableGraph):
    """Contexts (rows, context_size) int64, the newest token last and negative where there is none -> (rows, dim)."""

    compared = ("predictor_out",)
    counted = None
    quantised = False  # a lookup and a convolution; search asks for each context once
    state_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def __init__(self, predictor: StatelessPredictor, joiner: Joiner) -> None:
        super().__init__()
        self.predictor, self.projection = predictor, joiner.decoder_proj
        self.context_size, self.vocab_size = predictor.context_size, predictor.config.vocab_size

    @property
    def outputs(self) -> list[str]:
        return ["predictor_out"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"context": {0: "rows"}}

    def example(self) -> dict[str, Tensor]:
        return {"context": torch.zeros(EXAMPLE_BATCH, self.context_size, dtype=torch.int64)}

    def trials(self) -> Iterator[Run]:
        """Contexts of any tokens, the first ones without all or some."""
        random = torch.Generator().manual_seed(0)
        context = torch.randint(self.vocab_size, (TRIAL_ROWS, self.context_size), generator=random)
        context[0] = -1
        context[1, :-1] = -1
        context[2] = self.vocab_size - 1
        yield Run([{"context": context}])

    def forward(self, context: Tensor) -> tuple[Tensor]:
        return (as_dtype(self.projection(self.predictor(context)), torch.float32),)
