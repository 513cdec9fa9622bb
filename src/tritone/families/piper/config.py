"""The configuration of a voice of Piper, as it lies beside its graph.

    VOICE.onnx.json  ->  PiperConfig

Source: Piper's training code, https://github.com/rhasspy/piper, `piper_train.infer_onnx` and its voices' files.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tritone.bundle.bundle import explain_fault
from tritone.errors import ExportError
from tritone.kinds.synthesis.part import SynthesisPart

MAX_BYTES = 16 * 2**20


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _Audio(_Read):
    sample_rate: Annotated[int, Field(ge=1000, le=768_000)]


class _Espeak(_Read):
    voice: str


class _Inference(_Read):
    noise_scale: float = 0.667
    length_scale: float = 1.0
    noise_w: float = 0.8


class _Language(_Read):
    code: str = ""


class PiperConfig(_Read):
    """What a voice's file says of what its graph takes."""

    audio: _Audio
    espeak: _Espeak
    inference: _Inference = _Inference()
    language: _Language = _Language()
    phoneme_type: Literal["espeak", "PhonemeType.ESPEAK"] = "espeak"
    phoneme_id_map: dict[str, list[int]]
    phoneme_map: dict[str, list[str]] = {}
    num_speakers: Annotated[int, Field(ge=1)] = 1
    speaker_id_map: dict[str, int] = {}

    def synthesis(self) -> SynthesisPart:
        """The part of a manifest; raises `ValidationError` where something is out of its bounds."""
        speakers: dict[str, int] = {}
        if self.num_speakers > 1:
            numbered = {str(number): number for number in range(self.num_speakers)}
            speakers = dict(sorted(self.speaker_id_map.items(), key=lambda each: each[1])) or numbered
        given: dict[str, Any] = {
            "espeak_voice": self.espeak.voice,
            "phonemes": self.phoneme_id_map,
            "replaced": {phoneme: "".join(others) for phoneme, others in self.phoneme_map.items()},
            "language": self.language.code.replace("_", "-"),
            "noise": self.inference.noise_scale,
            "duration_noise": self.inference.noise_w,
            "length": self.inference.length_scale,
            "speakers": speakers,
        }
        return SynthesisPart.model_validate(given)


def read_config(path: Path) -> tuple[PiperConfig, SynthesisPart]:
    """Read the configuration of a voice.

    Raises:
        ExportError: there is no such file, or it is of no voice that espeak-ng writes phonemes for; says which field.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ExportError(f"{path} has more than {MAX_BYTES} bytes, which no voice's configuration has")
        config = PiperConfig.model_validate_json(path.read_bytes())
        return config, config.synthesis()
    except OSError as error:
        raise ExportError(
            f"cannot read {path}: {error.strerror}. A voice of Piper is two files, VOICE.onnx and VOICE.onnx.json"
        ) from error
    except ValidationError as error:
        faults = "; ".join(explain_fault(each) for each in error.errors()[:3])
        raise ExportError(f"{path} is not the configuration of a voice that speaks by espeak-ng: {faults}") from error
