"""Small random models of Nemotron-3-Diarization in folders as transformers writes them, and transformers' answers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tritone.audio import Waveform
from tritone.families.export.report import ExportReport
from tritone.families.nemo.diarization import DiarizationNetwork
from tritone.families.nemo.diarization_export import parse_config
from tritone.families.nemo.export import export_nemo

RATE = 16000
SPEAKERS = 4
MODES = {"low_latency": [9, 4], "very_low_latency": [6, 2], "ultra_low_latency": [3, 1]}
# The cache is full and chosen from after three seconds.
CONFIG: dict[str, Any] = {
    "model_type": "nemotron3_diarization",
    "architectures": ["Nemotron3DiarizationForAudioFrameClassification"],
    "audio_config": {
        **{"model_type": "nemotron3_diarization_audio", "hidden_size": 32, "intermediate_size": 48},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_mel_bins": 16, "subsampling_factor": 8},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "head_config": {"hidden_size": 16, "num_speakers": SPEAKERS, "audio_hidden_size": 32},
    "streaming_config": {
        **{"fifo_length": 10, "speaker_cache_update_period": 8, "speaker_cache_length": 24},
        "num_speakers": SPEAKERS,
    },
    **{"chunk_length": 14, "chunk_right_context": 4, "fifo_length": 6, "speaker_cache_update_period": 12},
}
PROCESSOR: dict[str, Any] = {
    "processor_class": "Nemotron3DiarizationProcessor",
    "feature_extractor": {
        **{"feature_extractor_type": "NemotronAsrStreamingFeatureExtractor", "feature_size": 16},
        **{"sampling_rate": RATE, "hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97},
    },
    "streaming_modes": MODES,
    "streaming_mode": "low_latency",
    "subsampling_factor": 8,
}


def write(folder: Path, seed: int = 1) -> Path:
    """A folder with random weights, whose speakers come and go many times a second and talk at once."""
    folder.mkdir(parents=True, exist_ok=True)
    network = DiarizationNetwork(parse_config(CONFIG, PROCESSOR, PROCESSOR["feature_extractor"]))
    random = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in network.state_dict().items():
        if value.ndim > 1:
            state[name] = torch.randn(value.shape, generator=random) * 1.5 / math.sqrt(value[0].numel())
        else:
            state[name] = 0.5 * torch.randn(value.shape, generator=random) + (1.0 if "norm" in name else 0.0)
    state["classifier.out_proj.weight"] *= 3
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    for file, content in (("config.json", CONFIG), ("processor_config.json", PROCESSOR)):
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


def export(folder: Path) -> ExportReport:
    """A bundle of such a model, in fp32 and int8."""
    return export_nemo(archive=write(folder / "theirs"), output=folder / "who", precisions=("fp32", "int8"))


class Upstream:
    """transformers' model of a folder; of equal scores it takes the first, where it takes any otherwise."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        from transformers import Nemotron3DiarizationProcessor, NemotronAsrStreamingFeatureExtractor
        from transformers.models.nemotron3_diarization import modeling_nemotron3_diarization as modeling

        # A frame of two speakers is twice in the cache, and which of the two `topk` finds is not defined.
        monkeypatch.setattr(modeling.torch, "topk", _first_of_equals)
        self.model = modeling.Nemotron3DiarizationForAudioFrameClassification.from_pretrained(folder).eval()
        self.extractor = NemotronAsrStreamingFeatureExtractor(feature_size=16)
        self.processor = Nemotron3DiarizationProcessor(self.extractor, streaming_modes=MODES)

    @torch.no_grad()
    def of_recording(self, waveform: Waveform) -> np.ndarray:
        """Probabilities (frames, speakers) of a whole recording, of its own frames and no masked one behind them."""
        inputs, frames = self.processor(waveform, sampling_rate=RATE), len(waveform) // 160
        own = {name: inputs[name][:, :frames] for name in ("input_features", "attention_mask")}
        found: np.ndarray = self.model(**own).logits.sigmoid()[0].numpy()
        return found

    @torch.no_grad()
    def of_stream(self, waveform: Waveform, mode: str) -> list[np.ndarray]:
        """Probabilities of each step of a stream, whose steps are made as soon as their frames are whole."""
        processor = self.processor
        processor.set_streaming_mode(mode)
        cache, begin, found, last = None, 0, [], False
        while not last and len(waveform) // 160 > begin:
            first, frames = begin == 0, processor.num_mel_frames_per_audio_chunk
            last = (begin + frames) * 160 + 40 > len(waveform)
            start = 0 if first else processor.audio_chunk_start(begin)
            samples = processor.num_samples_first_audio_chunk if first else processor.num_samples_per_audio_chunk
            chunk = waveform[start:] if last else waveform[start : start + samples]
            if not last:  # what its frames do not reach may not have come yet
                chunk = np.pad(chunk, (0, samples - len(chunk)))
            flags = {"is_first_audio_chunk": first, "is_last_audio_chunk": last}
            inputs = dict(processor(chunk, sampling_rate=RATE, is_streaming=True, **flags))
            if last and first:
                inputs["num_lookahead_frames"] = 0
            answer = self.model(**inputs, speaker_cache=cache)
            cache = answer.speaker_cache
            found.append(answer.logits.sigmoid()[0].numpy())
            begin += processor.num_mel_frames_per_step
        return found


def _first_of_equals(x: torch.Tensor, count: int, dim: int = -1, sorted: bool = True) -> tuple[torch.Tensor, ...]:
    values, places = torch.sort(x, dim=dim, descending=True, stable=True)
    return values.narrow(dim, 0, count), places.narrow(dim, 0, count)
