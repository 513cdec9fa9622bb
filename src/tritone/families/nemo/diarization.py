"""Nemotron-3-Diarization (a streaming Sortformer): how likely each of up to eight speakers talks, step by step.

    waveform, num_samples, sizes of the step, what streams keep
        ->  probabilities (batch, frames of 10 ms, speakers), num_frames, what they keep next

A stream keeps the encoder's input of frames that it has heard: the newest ones as they came (`fifo`), and of older ones
those that say most of each speaker (`cache`). Both stand before the frames of a step in the encoder's input. Speakers
are numbered by their first words. Whole recordings are streams of large steps.

Upstream keeps rows of a batch equally long. Here each row has its own counts: what it keeps and hears is moved together
in the input (`compact`), so that streams of any age share a call, and its results are those that it has alone.
Method and names of tensors: transformers 5.24, models/nemotron3_diarization/modeling_nemotron3_diarization.py.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.audio import Waveform
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Run, trial_signal
from tritone.families.export.precision import as_dtype
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.log_mel import LogMel, LogMelConfig
from tritone.families.layers.rotary import rotary, rotated
from tritone.kinds.diarization.part import DiarizationStep

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}
SIZES = ("chunk_frames", "last_frames", "fifo_length", "update_period")
"""What a graph takes of a step beside audio, a number for each row; see `DiarizationStep`."""

COUNTS = ("cache_frames", "fifo_frames", "compressed")  # states that are numbers
LIKELY = 0.5  # a speaker talks from this probability


@dataclass(frozen=True, kw_only=True)
class CacheRules:
    """Which frames the speaker cache keeps when it is full; names and meaning are those of upstream's config."""

    length: int = 264
    silence: int = 1
    threshold: float = 0.25
    latest_boost: float = 0.05
    strong_rate: float = 0.75
    weak_rate: float = 1.5
    positive_rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class DiarizationConfig:
    """Settings of a network; `recordings`: how whole ones are cut, `streams`: the steps of streams, the usual first.

    `rotary_size`: how many numbers of each head are turned by their place.
    """

    features: LogMelConfig
    recordings: DiarizationStep
    streams: tuple[DiarizationStep, ...]
    cache: CacheRules
    width: int = 512
    hidden: int = 2048
    layers: int = 31
    heads: int = 8
    activation: str = "gelu"
    rotary_base: float = 10000.0
    rotary_size: int = 64
    factor: int = 8
    head_width: int = 192
    speakers: int = 8

    @property
    def steps(self) -> tuple[DiarizationStep, ...]:
        """All steps that the network is run with."""
        return (self.recordings, *self.streams)

    @property
    def fifo_length(self) -> int:
        """Room for the newest frames, in steps of any size."""
        return max(each.fifo_length for each in self.steps)


class Attention(nn.Module):
    """Attention of all frames to all, with rotary positions."""

    wide_softmax = False
    fused = False

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, angles: Tensor, hidden: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _turned(query, angles), _turned(key, angles)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, hidden)
        else:
            scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3) + hidden
            weights = torch.softmax(as_dtype(scores, torch.float32) if self.wide_softmax else scores, dim=-1)
            mixed = as_dtype(weights, value.dtype) @ value
        result: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return result


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    size = angles.shape[-1]
    return rotated(x, angles) if size == x.shape[-1] else torch.cat([rotated(x[..., :size], angles), x[..., size:]], -1)


class FeedForward(nn.Module):
    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(self.activation(self.fc1(x)))
        return result


class Layer(nn.Module):
    """Attention and feed-forward layer, each after a norm."""

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.self_attn, self.layer_norm1 = Attention(config), nn.LayerNorm(config.width)
        self.mlp, self.layer_norm2 = FeedForward(config), nn.LayerNorm(config.width)

    def forward(self, x: Tensor, angles: Tensor, hidden: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), angles, hidden)
        result: Tensor = x + self.mlp(self.layer_norm2(x))
        return result


class Embedder(nn.Module):
    """`factor` frames of features as one of the encoder's."""

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.projection = nn.Linear(config.factor * config.features.n_filt, config.width, bias=False)


class AudioTower(nn.Module):
    """The encoder; upstream's `audio_tower`."""

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.config = config
        self.embedder = Embedder(config)
        self.input_layer_norm, self.layer_norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """Encode (batch, frames, width) of which those in `present` (batch, frames) bool are seen."""
        angles = as_dtype(rotary(x.shape[1], self.config.rotary_size, self.config.rotary_base, x.device), x.dtype)
        hidden = as_dtype(torch.where(present, 0.0, HIDDEN), x.dtype)[:, None, None, :]
        x = self.input_layer_norm(x)
        for layer in self.layers:
            x = layer(x, angles, hidden)
        result: Tensor = self.layer_norm(x)
        return result


class Upsampler(nn.Module):
    """A convolution that makes `factor` frames of one."""

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.conv = nn.Conv1d(config.head_width, config.head_width * config.factor, 3, padding=1)


class Tower(nn.Module):
    """Encoder and upsampler; upstream's `model`."""

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.audio_tower = AudioTower(config)
        self.proj, self.upsampler = nn.Linear(config.width, config.head_width), Upsampler(config)


class Classifier(nn.Module):
    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.head_width, config.head_width)
        self.out_proj = nn.Linear(config.head_width, config.speakers)


class DiarizationNetwork(nn.Module):
    """The network; its tensors have upstream's names."""

    def __init__(self, config: DiarizationConfig) -> None:
        super().__init__()
        self.config = config
        self.model, self.classifier = Tower(config), Classifier(config)
        self.silence_embeds = nn.Parameter(torch.zeros(config.width))

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.silence_embeds.dtype

    def embed(self, features: Tensor, count: Tensor) -> Tensor:
        """Encoder's input (batch, frames / factor, width) float32 of features, of which each row has `count`."""
        places = torch.arange(features.shape[1], device=features.device)
        features = features.masked_fill((places >= count.unsqueeze(1)).unsqueeze(2), 0.0)
        stacked = features.reshape(features.shape[0], -1, self.config.factor * features.shape[2])
        return as_dtype(self.model.audio_tower.embedder.projection(as_dtype(stacked, self.dtype)), torch.float32)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """Probabilities (batch, frames, factor * speakers) float32 of encoder's input (batch, frames, width)."""
        x = self.model.proj(self.model.audio_tower(as_dtype(x, self.dtype), present))
        x = x.masked_fill(~present.unsqueeze(2), 0.0)  # the convolution finds nothing behind the end of a row
        x = self.model.upsampler.conv(x.transpose(1, 2)).transpose(1, 2)
        x = x.unflatten(2, (self.config.factor, self.config.head_width))
        logits = self.classifier.out_proj(torch.relu(self.classifier.dense(torch.relu(x))))
        return torch.sigmoid(as_dtype(logits, torch.float32)).flatten(2)


def _rows(x: Tensor, places: Tensor) -> Tensor:
    """Of each row of (batch, frames, width) the frames at `places` (batch, count), limited to what is there."""
    places = places.clamp(min=0, max=x.shape[1] - 1)
    return x.gather(1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))


class SpeakerCache(nn.Module):
    """Chooses the frames that the cache keeps of more than it has room for.

    A frame of two speakers is in the cache twice, with equal scores, so what is taken of equals decides what follows.
    Here it is the first one; upstream takes any.
    """

    fused = False

    def __init__(self, rules: CacheRules, speakers: int) -> None:
        super().__init__()
        self.rules = rules
        budget = rules.length // speakers - rules.silence
        self.positive = math.floor(budget * rules.positive_rate)
        self.boosts = (
            (math.floor(budget * rules.strong_rate), -2 * math.log(0.5)),
            (math.floor(budget * rules.weak_rate), -math.log(0.5)),
        )

    def forward(self, probabilities: Tensor, candidate: Tensor) -> Tensor:
        """The places of the frames that stay, by speaker and then by time.

        Args:
            probabilities: (batch, frames, speakers) float32.
            candidate: (batch, frames) bool, the frames that are there.

        Returns:
            (batch, length) int64; `frames` stands for silence.
        """
        rules, (_, frames, speakers) = self.rules, probabilities.shape
        likely = torch.log(probabilities.clamp(min=rules.threshold))
        unlikely = torch.log((1.0 - probabilities).clamp(min=rules.threshold))
        scores = likely - unlikely + unlikely.sum(dim=2, keepdim=True) - math.log(0.5)
        talks, positive = (probabilities > LIKELY) & candidate.unsqueeze(2), scores > 0
        enough = (talks & positive).sum(dim=1, keepdim=True) >= self.positive
        scores = scores.masked_fill(~talks | (~positive & enough), -math.inf)
        newest = torch.arange(frames, device=scores.device) >= rules.length
        scores = scores + rules.latest_boost * newest.to(scores.dtype).unsqueeze(1)
        for count, boost in self.boosts:
            best, which = self._best(scores, count)
            scores = scores.scatter(1, which, best + boost)
        silence = torch.full_like(scores[:, :1], math.inf).expand(-1, rules.silence, -1)
        scored = frames + rules.silence
        flat = torch.cat([scores, silence], dim=1).transpose(1, 2).flatten(1)
        best, which = self._best(flat, rules.length)
        beyond = scored * speakers
        places = torch.sort(torch.where(best == -math.inf, beyond, which), dim=1).values
        return torch.where(places == beyond, frames, (places % scored).clamp(max=frames))

    def _best(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The greatest values along the second axis and their places."""
        if self.fused:
            values, places = torch.sort(x, dim=1, descending=True, stable=True)
        else:  # stable all the same: on a CPU, and in ONNX
            values, places = torch.sort(x, dim=1, descending=True)
        return values[:, :count], places[:, :count]


class DiarizationGraph(ExportableGraph):
    """One step of many streams, of any chunk size.

    The newest audio of a step, beyond its chunk, is heard and not yet judged: it begins the next one. `chunk_frames`
    are judged in a full window, and `last_frames` at most in one that ends before its window does.
    """

    compared = ("probabilities",)
    fused = False

    def __init__(self, network: DiarizationNetwork, front_end: LogMel) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        config = self.config = network.config
        self.cache = SpeakerCache(config.cache, config.speakers)
        self.sample_rate = config.features.sample_rate

    def window_for(self, frames: int) -> int:
        """Samples that give exactly so many encoder frames."""
        front_end = self.front_end
        return (frames * self.config.factor - 1) * front_end.frame_shift + front_end.frame_length + 1

    @property
    def frame_samples(self) -> int:
        """Samples from one encoder frame to the next."""
        return self.config.factor * self.front_end.frame_shift

    @property
    def lead_samples(self) -> int:
        """Zeros before a stream's first sample."""
        return self.front_end.lead_samples + 1

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of one stream, zeros at its start; those of `COUNTS` are int64, the others float32."""
        config = self.config
        return {
            "cache": (config.cache.length, config.width),
            "cache_probabilities": (config.cache.length, config.speakers),
            "fifo": (config.fifo_length, config.width),
            **dict.fromkeys(COUNTS, ()),
        }

    def zero_states(self, batch: int) -> dict[str, Tensor]:
        """The states of streams that start."""
        return {
            name: torch.zeros(batch, *shape, dtype=torch.int64 if name in COUNTS else torch.float32)
            for name, shape in self.state_shapes.items()
        }

    @property
    def outputs(self) -> list[str]:
        return ["probabilities", "num_frames", *(f"next_{name}" for name in self.state_shapes)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        axes = {name: {0: "batch"} for name in ("waveform", "num_samples", *SIZES, *self.state_shapes)}
        axes["waveform"][1] = "samples"
        return axes

    def example(self) -> dict[str, Tensor]:
        step = self.config.streams[0]
        ends = [self.window_for(step.chunk_size + step.lookahead)] * EXAMPLE_BATCH
        inputs = next(self._steps(step, torch.zeros(1), ends))
        return {**inputs, **self.zero_states(EXAMPLE_BATCH)}

    def trials(self) -> Iterator[Run]:
        """Streams of two steps; large steps, which fill the cache, of one and of two; a single row."""
        for step, counts in (
            (self.config.streams[0], (1.5, 1.9)),
            (self.config.recordings, (0.3, 1.2)),
            (self.config.streams[0], (0.6,)),
        ):
            ends = [round(each * step.chunk_size * self.frame_samples) for each in counts]
            signal = torch.cat([torch.zeros(self.lead_samples), trial_signal(max(ends), self.sample_rate)])
            ends = [self.lead_samples + each for each in ends]
            yield Run(list(self._steps(step, signal, ends)), self.zero_states(len(ends)))

    def hearing(self, waveform: Waveform) -> Run:
        """A recording as the steps of a stream."""
        signal = torch.cat([torch.zeros(self.lead_samples), torch.from_numpy(waveform)])
        return Run(list(self._steps(self.config.streams[0], signal, [len(signal)])), self.zero_states(1))

    def _steps(self, step: DiarizationStep, signal: Tensor, ends: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """Steps of streams that hear a signal up to their ends."""
        window, shift = self.window_for(step.chunk_size + step.lookahead), step.chunk_size * self.frame_samples
        rest = torch.tensor(ends)
        signal = F.pad(signal, (0, max(ends) + window - len(signal)))
        for start in range(0, max(ends), shift):
            sizes = (step.chunk_size, step.last_frames, step.fifo_length, step.update_period)
            yield {
                "waveform": signal[start : start + window].repeat(len(ends), 1),
                "num_samples": (rest - start).clamp(min=0, max=window),
                **{name: torch.full_like(rest, size) for name, size in zip(SIZES, sizes, strict=True)},
            }

    def forward(
        self,
        waveform: Tensor,
        num_samples: Tensor,
        chunk_frames: Tensor,
        last_frames: Tensor,
        fifo_length: Tensor,
        update_period: Tensor,
        cache: Tensor,
        cache_probabilities: Tensor,
        fifo: Tensor,
        cache_frames: Tensor,
        fifo_frames: Tensor,
        compressed: Tensor,
    ) -> tuple[Tensor, ...]:
        factor, speakers = self.config.factor, self.config.speakers
        features, num_features = self.front_end.of_window(waveform, num_samples)
        x = self.network.embed(features, num_features)
        room, queue, count = cache.shape[1], fifo.shape[1], x.shape[1]
        valid = (num_features + factor - 1) // factor
        judged = torch.minimum(valid, torch.where(num_samples < waveform.shape[1], last_frames, chunk_frames))

        # What is kept and what is heard, moved together.
        place = torch.arange(room + queue + count, device=x.device).unsqueeze(0)
        kept = cache_frames + fifo_frames
        of_cache, of_kept = place < cache_frames.unsqueeze(1), place < kept.unsqueeze(1)
        present = place < (kept + valid).unsqueeze(1)
        of_fifo, of_step = place - cache_frames.unsqueeze(1) + room, place - kept.unsqueeze(1) + (room + queue)
        compact = torch.where(of_cache, place, torch.where(of_kept, of_fifo, of_step))
        frames = _rows(torch.cat([cache, fifo, x], dim=1), compact).masked_fill(~present.unsqueeze(2), 0.0)
        if self.fused:
            found = self.network(frames, present)
        else:  # programs of torch have fixed sizes; others leave out what no row has
            longest = (kept + valid).max().clamp(min=1)
            found = _rows(self.network(frames[:, :longest], present[:, :longest]), place.expand(x.shape[0], -1))

        own = kept.unsqueeze(1) + torch.arange(count, device=x.device).unsqueeze(0)
        probabilities = _rows(found, own).unflatten(2, (factor, speakers)).flatten(1, 2)
        num_frames = torch.minimum(num_features, judged * factor)

        # The oldest of the newest frames move to the cache when these are too many.
        newest = fifo_frames + judged
        excess = newest - fifo_length
        moved = torch.where(excess > 0, torch.minimum(torch.maximum(update_period, excess), newest), 0)
        cached = cache_frames + moved
        # Of frames in the order of time every step has a new opinion.
        means = found.unflatten(2, (factor, speakers)).mean(dim=2)
        stored = F.pad(cache_probabilities, (0, 0, 0, queue + count))
        means = torch.where(((compressed > 0).unsqueeze(1) & of_cache).unsqueeze(2), stored, means)
        full = cached > room
        chosen = self.cache(means, place < cached.unsqueeze(1))
        first = torch.arange(room, device=x.device).unsqueeze(0)
        chosen = torch.where(full.unsqueeze(1), chosen, first)
        empty = (first >= cached.unsqueeze(1)).unsqueeze(2)
        silence = as_dtype(self.network.silence_embeds, torch.float32).expand(x.shape[0], 1, -1)
        behind = cached.unsqueeze(1) + torch.arange(queue, device=x.device).unsqueeze(0)
        next_fifo = _rows(frames, behind).masked_fill((behind >= (kept + judged).unsqueeze(1)).unsqueeze(2), 0.0)
        return (
            probabilities,
            num_frames,
            _rows(torch.cat([frames, silence], dim=1), chosen).masked_fill(empty, 0.0),
            _rows(F.pad(means, (0, 0, 0, 1)), chosen).masked_fill(empty, 0.0),
            next_fifo,
            torch.clamp(cached, max=room),
            newest - moved,
            torch.where(full, 1, compressed),
        )
