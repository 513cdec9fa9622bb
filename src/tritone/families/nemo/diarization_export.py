"""From a folder of Nemotron-3-Diarization, as transformers saves it, to a bundle.

    config.json, processor_config.json, model.safetensors  ->  DiarizationConfig, DiarizationNetwork
                                                           ->  manifest.json, streaming_encoder for each runtime

What would change a result and is not computed here is refused by its name. Facts: transformers 5.24,
models/nemotron3_diarization.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Precision, Role, State, Streaming
from tritone.errors import ExportError
from tritone.families.export.checkpoint import require_fit
from tritone.families.export.drift import Drift
from tritone.families.export.exportable import Graphs
from tritone.families.export.frame import ExportedModel
from tritone.families.export.frame_drift import paired_frames
from tritone.families.export.hf_folder import CONFIG, PROCESSOR, read_extractor, read_tensors, weight_files
from tritone.families.export.json_files import read_json, read_json_if_there
from tritone.families.export.precision import in_precision
from tritone.families.export.settings import Section, shown
from tritone.families.layers.log_mel import LogMel, features_of
from tritone.families.nemo.config import MAX_LAYERS
from tritone.families.nemo.diarization import (
    ACTIVATIONS,
    COUNTS,
    LIKELY,
    CacheRules,
    DiarizationConfig,
    DiarizationGraph,
    DiarizationNetwork,
)
from tritone.families.nemo.folder import FEATURE_KEYS, GENERAL, log_mel_of
from tritone.families.nemo.options import NemoOptions
from tritone.kinds.diarization.part import DiarizationPart, DiarizationStep
from tritone.runtime import Graph

DIARIZATION = "nemotron3_diarization"  # as `model_type`
MAX_SPEAKERS = 64
MAX_FRAMES = 10_000  # of a step, the cache or the queue
MODES = {"low_latency": (9, 4), "very_low_latency": (6, 2), "ultra_low_latency": (3, 1)}
USUAL_MODE = "low_latency"

KEYS = (
    *("audio_config", "head_config", "streaming_config", "chunk_length", "chunk_right_context", "chunk_left_context"),
    *("fifo_length", "speaker_cache_update_period"),
)
AUDIO_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("hidden_act", "max_position_embeddings", "rope_parameters", "attention_dropout", "num_mel_bins"),
    "subsampling_factor",
)
HEAD_KEYS = ("hidden_size", "num_speakers", "audio_hidden_size", "subsampling_factor")
STREAMING_KEYS = (
    *("fifo_length", "speaker_cache_update_period", "speaker_cache_length", "speaker_cache_silence_frames_per_speaker"),
    *("prediction_score_threshold", "latest_frames_score_boost", "strong_boost_rate", "weak_boost_rate"),
    *("min_positive_scores_rate", "num_speakers", "subsampling_factor"),
)
ROTARY_KEYS = ("rope_type", "rope_theta", "partial_rotary_factor")


def is_diarization(archive: Path) -> bool:
    """Whether this is a folder of such a model."""
    return archive.is_dir() and read_json(archive / CONFIG).get("model_type") == DIARIZATION


def read_folder(folder: Path) -> tuple[DiarizationNetwork, dict[str, Path]]:
    """Read a folder that transformers' save_pretrained wrote: the network, and the files that were read.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or does not fit another.
    """
    extractor, source = read_extractor(folder)
    try:
        config = parse_config(read_json(folder / CONFIG), read_json_if_there(folder / PROCESSOR), extractor)
    except ExportError as error:
        raise ExportError(f"{folder}: {error}") from error
    files = weight_files(folder)
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read_tensors(file)
    with torch.device("meta"):  # the sizes are a stranger's; memory is taken by tensors that are there
        network = DiarizationNetwork(config)
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    require_fit(wanted, state, str(folder), "its config")
    network.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    sources = {each.name: each for each in files} | {"config": folder / CONFIG, "processor": source}
    return network.requires_grad_(False).eval(), sources


def parse_config(
    content: Mapping[str, Any], processor: Mapping[str, Any], extractor: Mapping[str, Any]
) -> DiarizationConfig:
    """Read the content of config.json, of the processor's file and of the feature extractor's.

    Raises:
        ExportError: a key is missing, unknown or of the wrong type, or names something that this version cannot read.
    """
    whole = Section("config", content, (*KEYS, *GENERAL))
    audio = whole.part("audio_config", (*AUDIO_KEYS, *GENERAL))
    head = whole.part("head_config", (*HEAD_KEYS, *GENERAL))
    stream = whole.part("streaming_config", (*STREAMING_KEYS, *GENERAL))
    width, heads = audio.whole("hidden_size", 512, least=2), audio.whole("num_attention_heads", 8, least=1)
    factor, speakers = audio.whole("subsampling_factor", 8, least=1), head.whole("num_speakers", 8, most=MAX_SPEAKERS)
    for section, key, same in (
        (audio, "num_key_value_heads", heads),
        (head, "audio_hidden_size", width),
        (head, "subsampling_factor", factor),
        (stream, "subsampling_factor", factor),
        (stream, "num_speakers", speakers),
    ):
        if (found := section.whole(key, same)) != same:
            raise ExportError(f"{section.path}.{key} is {found}, but the rest of the config says {same}")
    if width % heads:
        raise ExportError(f"audio_config.hidden_size ({width}) is no multiple of num_attention_heads ({heads})")
    if (left := whole.whole("chunk_left_context", 0, least=0)) != 0:
        raise ExportError(f"config.chunk_left_context is {left}; only 0 can be exported")
    rotary = audio.part("rope_parameters", ROTARY_KEYS)
    rotary.choice("rope_type", ("default",), "default")
    rules = CacheRules(
        length=stream.whole("speaker_cache_length", 264, most=MAX_FRAMES),
        silence=stream.whole("speaker_cache_silence_frames_per_speaker", 1, least=0, most=MAX_FRAMES),
        threshold=_share(stream, "prediction_score_threshold", 0.25),
        latest_boost=stream.number("latest_frames_score_boost", 0.05),
        strong_rate=_share(stream, "strong_boost_rate", 0.75, most=10),
        weak_rate=_share(stream, "weak_boost_rate", 1.5, most=10),
        positive_rate=_share(stream, "min_positive_scores_rate", 0.5, most=10),
    )
    if rules.length < (least := (1 + rules.silence) * speakers):
        raise ExportError(
            f"streaming_config.speaker_cache_length is {rules.length}; {speakers} speakers with {rules.silence} frames "
            f"of silence each need {least} at least"
        )
    chunk, ahead = whole.whole("chunk_length", 340, most=MAX_FRAMES), whole.whole("chunk_right_context", 40, least=0)
    if ahead >= chunk:
        raise ExportError(f"config.chunk_right_context ({ahead}) should be smaller than chunk_length ({chunk})")
    return DiarizationConfig(
        features=log_mel_of(
            Section("feature_extractor", extractor, FEATURE_KEYS), audio.whole("num_mel_bins", 128), streaming=True
        ),
        recordings=DiarizationStep(
            chunk_size=chunk,
            lookahead=ahead,
            last_frames=chunk,
            fifo_length=whole.whole("fifo_length", 40, most=MAX_FRAMES),
            update_period=whole.whole("speaker_cache_update_period", 300, most=MAX_FRAMES),
        ),
        streams=_streams(processor, stream, chunk),
        cache=rules,
        width=width,
        hidden=audio.whole("intermediate_size", 2048),
        layers=audio.whole("num_hidden_layers", 31, most=MAX_LAYERS),
        heads=heads,
        activation=audio.choice("hidden_act", tuple(ACTIVATIONS), "gelu"),
        rotary_base=rotary.number("rope_theta", 10000.0),
        rotary_size=_rotary_size(width // heads, rotary.number("partial_rotary_factor", 1.0)),
        factor=factor,
        head_width=head.whole("hidden_size", 192),
        speakers=speakers,
    )


def _share(section: Section, key: str, default: float, most: float = 1.0) -> float:
    if not 0 < (found := section.number(key, default)) <= most:
        raise ExportError(f"{section.path}.{key} is {found:g}, expected more than 0, at most {most:g}")
    return found


def _rotary_size(size: int, share: float) -> int:
    found = int(size * share)
    if not 0 < found <= size or found % 2:
        raise ExportError(
            f"rope_parameters.partial_rotary_factor is {share:g}, of heads of {size} numbers; expected an even part"
        )
    return found


def _streams(processor: Mapping[str, Any], stream: Section, whole_chunk: int) -> tuple[DiarizationStep, ...]:
    """The steps that streams may have, the processor's usual ones first."""
    modes = processor.get("streaming_modes") or MODES
    if not isinstance(modes, Mapping) or not all(
        isinstance(each, Sequence) and len(each) == 2 and all(type(one) is int for one in each)
        for each in modes.values()
    ):
        raise ExportError(
            f"processor.streaming_modes is {shown(modes)}, expected two numbers for each name: frames of a chunk, and "
            "those that are heard after it"
        )
    usual = processor.get("streaming_mode") or USUAL_MODE
    if usual not in modes:
        raise ExportError(f"processor.streaming_mode is {shown(usual)}, which is none of {', '.join(modes)}")
    fifo = stream.whole("fifo_length", 264, most=MAX_FRAMES)
    period = stream.whole("speaker_cache_update_period", 222, most=MAX_FRAMES)
    sizes = dict([modes[usual], *modes.values()])
    if wrong := [each for each in sizes.items() if not (0 < each[0] < whole_chunk and 0 <= each[1] <= MAX_FRAMES)]:
        raise ExportError(
            f"processor.streaming_modes has a chunk of {wrong[0][0]} frames with {wrong[0][1]} after it; a chunk has "
            f"at least 1, and fewer than those of whole recordings ({whole_chunk})"
        )
    return tuple(
        DiarizationStep(
            chunk_size=chunk, lookahead=ahead, last_frames=chunk + ahead, fifo_length=fifo, update_period=period
        )
        for chunk, ahead in sizes.items()
    )


class ActivityDrift(Drift):
    """How far probabilities of speakers are from float32; `changed`: of frames and speakers, other answers."""

    def __str__(self) -> str:
        return (
            f"probabilities in {self.count} frames change by {self.mean:.3g}, at most {self.largest:.3g}; another "
            f"answer whether a speaker talks in {self.changed:.2%}"
        )


class ExportedDiarization(ExportedModel):
    """A trained model that says who talks when."""

    family = "nemo"

    def __init__(self, options: NemoOptions) -> None:
        """Read the folder that the options name."""
        for name, given in (("head", options.head), ("stages", options.stages)):
            if given:
                raise ExportError(f"--{name} is for models that recognise speech; this one tells speakers apart")
        options.progress("reading the model")
        self.network, self.sources = read_folder(options.archive)
        config = self.network.config
        self.streams = config.streams
        if (chosen := options.chunk_size) is not None:
            known = [each.chunk_size for each in config.streams]
            if chosen not in known:
                raise ExportError(
                    f"chunk size {chosen}: this model is for steps of {', '.join(map(str, known))} encoder frames; "
                    "take one of them"
                )
            self.streams = tuple(sorted(config.streams, key=lambda each: each.chunk_size != chosen))
            self.network.config = replace(config, streams=self.streams)
        self.front_end, self.sample_rate = LogMel(config.features), config.features.sample_rate
        self.choices = {"chunk_size": self.streams[0].chunk_size}
        frame_s = config.factor * config.features.frame_shift / self.sample_rate
        sizes = ", ".join(
            f"{each.chunk_size} (answers after {(each.chunk_size + each.lookahead) * frame_s:.2f} s)"
            for each in self.streams
        )
        self.notes = (f"steps of streams, in encoder frames, the usual first: {sizes}",)

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        return {"streaming_encoder": DiarizationGraph(network, self.front_end).eval()}

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> ActivityDrift:
        pairs = list(paired_frames(self.graphs[role], opened, recordings))
        expected, found = (np.concatenate(each) for each in zip(*pairs, strict=True))
        change = np.abs(found - expected)
        changed = np.mean((found > LIKELY) != (expected > LIKELY))
        return ActivityDrift(
            len(change), float(change.mean()), float(change.max()), float(changed), float(change.max(axis=1).mean())
        )

    def manifest(self) -> dict[str, Any]:
        graph, config = self.graphs["streaming_encoder"], self.network.config
        assert isinstance(graph, DiarizationGraph)
        usual = self.streams[0]
        return {
            "kind": "diarization",
            "features": features_of(config.features),
            "encoder": Encoder(
                subsampling_rate=config.factor,
                output_dim=config.speakers,
                min_samples=graph.lead_samples + config.features.frame_shift,
            ),
            "streaming": Streaming(
                chunk_size=usual.chunk_size,
                left_chunks=0,
                window_samples=graph.window_for(usual.chunk_size + usual.lookahead),
                shift_samples=usual.chunk_size * graph.frame_samples,
                states=tuple(
                    State(name=name, shape=shape, dtype="int64" if name in COUNTS else "float32")
                    for name, shape in graph.state_shapes.items()
                ),
                flexible=True,
                frame_samples=graph.window_for(1),
                trained={each.chunk_size: 0 for each in config.steps},
                lead_samples=graph.lead_samples,
            ),
            "diarization": DiarizationPart(
                speakers=config.speakers, recordings=config.recordings, streams=self.streams
            ),
        }
