"""The graphs of FunASR's bundles, as modules ready for export; contracts in docs/design.md.

SenseVoiceGraph  waveform, num_samples, language, use_itn  ->  log_probs, num_frames, encoder_out, tags
EncoderGraph     waveform, num_samples  ->  encoder_out, num_frames, token_sums, num_tokens
DecoderGraph     encoder_out, num_frames, token_sums, num_tokens, places  ->  log_probs, and for the next one
                 token_vectors, token_states
PhraseGraph      phrases, phrase_lengths  ->  phrase_vectors
HotwordGraph     token_vectors, token_states, num_tokens, phrase_vectors, listed, num_listed  ->  log_probs
StreamingGraph   waveform, num_samples, states  ->  log_probs, num_tokens, token_frames, num_frames, next states

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Run, UtteranceGraph, trial_signal
from tritone.families.export.precision import as_dtype
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.hotwords import CHOSEN, HotwordDecoder, PhraseEncoder
from tritone.families.funasr.model import LANGUAGES, PLAIN, USUAL_LANGUAGE, WRITTEN, SenseVoice
from tritone.families.funasr.paraformer import Decoder, Paraformer
from tritone.families.funasr.streaming import DECODED, STEP, StreamingParaformer, StreamSizes
from tritone.pipelines.searching.paraformer import STATES
from tritone.pipelines.searching.phrases import MAX_TOKENS

TRIAL_STARTS = 8


class SenseVoiceGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), and num_samples, language and use_itn (batch,) int64."""

    def __init__(self, network: SenseVoice, front_end: StackedFbank) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = network.config.front_end.sample_rate

    @property
    def min_samples(self) -> int:
        return self.front_end.min_samples

    @property
    def outputs(self) -> list[str]:
        return [*super().outputs, "tags"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return super().dynamic | {"language": {0: "batch"}, "use_itn": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        return dict(_asked(super().example()))

    def trials(self) -> Iterator[Run]:
        for run in super().trials():
            yield Run([_asked(step) for step in run.steps])

    def hearing(self, waveform: Waveform) -> Run | None:
        run = super().hearing(waveform)
        return None if run is None else Run([_asked(step) for step in run.steps])

    def acoustic(self, features: Tensor, num_samples: Tensor, *asked: Tensor) -> tuple[Tensor, ...]:
        frames = self.front_end.num_frames(num_samples)
        log_probs, tags, encoded = self.network(features, frames, *asked)
        return log_probs, frames, as_dtype(encoded, torch.float32), tags

    def forward(self, waveform: Tensor, num_samples: Tensor, *asked: Tensor) -> tuple[Tensor, ...]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples, *asked)


def _asked(step: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Inputs with languages and forms of text, the usual ones in the first row and others in the next."""
    rows = torch.arange(len(step["waveform"]))
    languages = torch.tensor([LANGUAGES[USUAL_LANGUAGE], *LANGUAGES.values()])
    forms = torch.tensor([PLAIN, WRITTEN])
    return {**step, "language": languages[rows % len(languages)], "use_itn": forms[rows % 2]}


class EncoderGraph(UtteranceGraph):
    """Encoder and predictor of a Paraformer: waveform (batch, samples), num_samples (batch,) int64."""

    compared = ("encoder_out", "token_sums")
    relative = True

    def __init__(self, network: Paraformer, front_end: StackedFbank) -> None:
        super().__init__()
        self.front_end, self.encoder, self.predictor = front_end, network.encoder, network.predictor
        self.sample_rate = network.config.front_end.sample_rate

    @property
    def min_samples(self) -> int:
        return self.front_end.min_samples

    @property
    def outputs(self) -> list[str]:
        return ["encoder_out", "num_frames", "token_sums", "num_tokens"]

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, ...]:
        frames = self.front_end.num_frames(num_samples)
        encoded = as_dtype(self.encoder(features, frames), torch.float32)
        return encoded, frames, *self.predictor(encoded, frames)


class DecoderGraph(ExportableGraph):
    """Decoder of a Paraformer: what `EncoderGraph` gives, and places (places,) int64, 0, 1, 2 …"""

    compared: tuple[str, ...] = ("log_probs",)
    counted = None

    def __init__(self, decoder: Decoder, width: int, *, has_hotwords: bool = False) -> None:
        super().__init__()
        self.decoder, self.width, self.has_hotwords = decoder, width, has_hotwords
        if has_hotwords:
            self.compared = (*self.compared, *STATES)

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", *(STATES if self.has_hotwords else ())]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {
            "encoder_out": {0: "batch", 1: "frames"},
            "num_frames": {0: "batch"},
            "token_sums": {0: "batch", 1: "frames"},
            "num_tokens": {0: "batch"},
            "places": {0: "places"},
        }

    def example(self) -> dict[str, Tensor]:
        return _decoded(torch.zeros(EXAMPLE_BATCH, 23, self.width), torch.tensor([23, 11, 5]), 0.31, 7)

    def trials(self) -> Iterator[Run]:
        """Frames like those behind a layer norm, in rows of several lengths; then one row."""
        random = torch.Generator().manual_seed(0)
        encoded = torch.randn(3, 40, self.width, generator=random)
        yield Run([_decoded(encoded, torch.tensor([40, 17, 3]), 0.29, 12)])
        yield Run([_decoded(encoded[:1, :9], torch.tensor([9]), 0.41, 4)])

    def forward(self, encoder_out: Tensor, *counts: Tensor) -> tuple[Tensor, ...]:
        return self.decoder.written(encoder_out, *counts)[: len(self.outputs)]


class PhraseGraph(ExportableGraph):
    """What reads phrases, in float32 in every precision; inputs as of `PhraseEncoder`."""

    compared = ("phrase_vectors",)
    counted = None
    quantised = False
    precise = True

    def __init__(self, network: PhraseEncoder) -> None:
        super().__init__()
        self.network = network

    @property
    def outputs(self) -> list[str]:
        return ["phrase_vectors"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"phrases": {0: "phrases"}, "phrase_lengths": {0: "phrases"}}

    def example(self) -> dict[str, Tensor]:
        return self._of([4, 1, 2, 5, 3])

    def trials(self) -> Iterator[Run]:
        yield Run([self._of([3, 1, MAX_TOKENS, 2])])
        yield Run([self._of([1])])

    def _of(self, lengths: list[int]) -> dict[str, Tensor]:
        random, size = torch.Generator().manual_seed(0), (len(lengths), MAX_TOKENS)
        phrases = torch.randint(self.network.embed.num_embeddings, size, generator=random)
        return {"phrases": phrases, "phrase_lengths": torch.tensor(lengths)}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (self.network(*inputs),)


class HotwordGraph(ExportableGraph):
    """A Paraformer's part for hotwords, in float32 in every precision; inputs as of `HotwordDecoder`."""

    compared = ("log_probs",)
    counted = None
    quantised = False
    precise = True

    def __init__(self, network: HotwordDecoder, width: int) -> None:
        super().__init__()
        self.network, self.width = network, width

    @property
    def outputs(self) -> list[str]:
        return ["log_probs"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {
            **{name: {0: "batch", 1: "tokens"} for name in STATES},
            "num_tokens": {0: "batch"},
            "phrase_vectors": {0: "phrases"},
            "listed": {0: "batch", 1: "listed"},
            "num_listed": {0: "batch"},
        }

    def example(self) -> dict[str, Tensor]:
        return self._told([7, 5, 2], 4, [6, 1, 3])

    def trials(self) -> Iterator[Run]:
        yield Run([self._told([9, 4, 1], 80, [5, 70, CHOSEN])])
        yield Run([self._told([3], 1, [1])])

    def _told(self, tokens: list[int], phrases: int, listed: list[int]) -> dict[str, Tensor]:
        """Inputs of rows with so many tokens and phrases, of so many in all."""
        random = torch.Generator().manual_seed(0)
        vectors = torch.randn(2, len(tokens), max(tokens), self.width, generator=random)
        orders = [torch.randperm(max(listed), generator=random) % phrases for _ in tokens]
        return {
            **dict(zip(STATES, vectors, strict=True)),
            "num_tokens": torch.tensor(tokens),
            "phrase_vectors": torch.randn(phrases, self.width, generator=random).tanh(),
            "listed": torch.stack(orders),
            "num_listed": torch.tensor(listed),
        }

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (self.network(*inputs),)


def _decoded(encoded: Tensor, frames: Tensor, weight: float, places: int) -> dict[str, Tensor]:
    """Inputs of a decoder whose frames all have one weight."""
    heard = torch.minimum(torch.arange(1, encoded.shape[1] + 1), frames.unsqueeze(1))
    sums = heard * weight
    return {
        "encoder_out": encoded,
        "num_frames": frames,
        "token_sums": sums,
        "num_tokens": sums[:, -1].floor().to(torch.int64),
        "places": torch.arange(places),
    }


class StreamingGraph(ExportableGraph):
    """One window of many streams: waveform (batch, window), num_samples (batch,) int64, fewer in the last one, states.

    All places for tokens are compared, since those beyond a row's own depend on its weights without a jump.
    """

    compared = ("log_probs",)
    counted = None

    def __init__(self, network: Paraformer, front_end: StackedFbank, sizes: StreamSizes) -> None:
        super().__init__()
        self.front_end, self.step, self.sizes = front_end, StreamingParaformer(network, sizes), sizes
        config = network.config.front_end
        self.sample_rate, self.shift_samples = config.sample_rate, sizes.chunk * config.step * config.frame_shift

    @property
    def window_samples(self) -> int:
        """Samples of a full window."""
        return self.front_end.lead_samples + self.shift_samples

    @property
    def outputs(self) -> list[str]:
        names = ["log_probs", "num_tokens", "token_frames", "num_frames"]
        return [*names, *(f"next_{name}" for name in self.step.state_shapes)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {name: {0: "batch"} for name in ("waveform", "num_samples", *self.step.state_shapes)}

    def zero_states(self, batch: int) -> dict[str, Tensor]:
        """The states of streams that start."""
        return {
            name: torch.zeros(batch, *shape, dtype=torch.int64 if name in (STEP, DECODED) else torch.float32)
            for name, shape in self.step.state_shapes.items()
        }

    def example(self) -> dict[str, Tensor]:
        samples = torch.full((EXAMPLE_BATCH,), self.window_samples)
        waveform = torch.zeros(EXAMPLE_BATCH, self.window_samples)
        return {"waveform": waveform, "num_samples": samples, **self.zero_states(EXAMPLE_BATCH)}

    def trials(self) -> Iterator[Run]:
        """Streams that end in their third and second step; then one that ends without rows of its own.

        Of some starts in the clips the one is taken where the sums of weights are farthest from whole numbers at the
        ends of steps: rounding must not decide in which step a token is.
        """
        signal = trial_signal(TRIAL_STARTS * self.sample_rate + 4 * self.shift_samples, self.sample_rate).numpy()
        shift = self.shift_samples
        starts = range(0, TRIAL_STARTS * self.sample_rate, self.sample_rate)
        best = max(starts, key=lambda start: self._margin(signal[start : start + 3 * shift]))
        lengths = shift * 5 // 2, shift * 5 // 3
        steps = zip(*(self._steps(signal[best : best + length], 3) for length in lengths), strict=True)
        joined = [{name: torch.cat([step[name] for step in each]) for name in each[0]} for each in steps]
        yield Run(joined, self.zero_states(2))
        yield self.hearing(signal[best : best + 2 * shift + shift // 50])

    @torch.no_grad()
    def _margin(self, waveform: Waveform) -> float:
        states, found = self.zero_states(1), 1.0
        for step in self._steps(waveform, 2):
            results = dict(zip(self.outputs, self(*step.values(), *states.values()), strict=True))
            states = {name: results[f"next_{name}"] for name in states}
            rest = float(states["part_weight"])
            found = min(found, rest, 1 - rest)
        return found

    def hearing(self, waveform: Waveform) -> Run:
        """A recording as the steps of a stream."""
        return Run(self._steps(waveform, len(waveform) // self.shift_samples + 1), self.zero_states(1))

    def _steps(self, waveform: Waveform, count: int) -> list[dict[str, Tensor]]:
        """The first windows of a stream; behind its end there is nothing in them."""
        lead, steps = self.front_end.lead_samples, []
        padded = np.concatenate([np.zeros(lead, np.float32), waveform])
        for start in range(0, count * self.shift_samples, self.shift_samples):
            piece = padded[start : start + self.window_samples]
            block = np.zeros((1, self.window_samples), np.float32)
            block[0, : len(piece)] = piece
            steps.append({"waveform": torch.from_numpy(block), "num_samples": torch.tensor([len(piece)])})
        return steps

    def forward(self, waveform: Tensor, num_samples: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        first = states[[*self.step.state_shapes].index(STEP)] == 0
        rows, num_rows = self.front_end.of_window(waveform, num_samples, first)
        return self.step(rows, num_rows, num_samples < self.window_samples, *states)
