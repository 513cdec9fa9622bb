"""What is asked of a recording or a live stream, as the gateway's own protocols take it: JSON, and parts of an address.

{"type": "start", "sample_rate": 16000, "words": true}  ->  Start  ->  Ask
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway.ask import Ask, SpeakerOptions, TurnOptions, VadOptions, language_parameters
from tritone.texts import TextOptions

DEFAULT_RATE = 16000  # Hz
IN_ADDRESS = ("model", "format", "sample_rate")  # options that may stand there, for clients that send audio alone

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Vad(_Options):
    """How a served model for voice activity cuts the stream; `parameters` as of the wire contract."""

    model: str = ""
    prefix_s: Annotated[Number, Field(ge=0, le=2)] = VadOptions.prefix_s
    parameters: dict[str, str | int | Number | bool] = {}


class Turns(_Options):
    """When a speaker has finished, as of `TurnOptions`."""

    model: str = ""
    pause_s: Annotated[Number, Field(ge=0.05, le=5)] = TurnOptions.pause_s
    threshold: Annotated[Number, Field(ge=0, le=1)] = TurnOptions.threshold
    eager_threshold: Annotated[Number, Field(ge=0, le=1)] | None = None
    max_silence_s: Annotated[Number, Field(ge=0.1, le=60)] = TurnOptions.max_silence_s


class Speakers(_Options):
    """How words get speakers."""

    model: str = ""
    num_speakers: Annotated[int, Field(ge=0)] = 0
    max_speakers: Annotated[int, Field(ge=0)] = 0


class Start(_Options):
    """The options of a stream, its first message; every one may be left out."""

    type: Literal["start"] = "start"
    model: str = ""
    format: str = "pcm_s16le"
    sample_rate: int = DEFAULT_RATE
    words: bool = False
    partials: bool = True
    language: str = ""
    allowed_languages: list[str] = []
    search: dict[str, str | int | Number | bool | dict[str, Number]] = {}
    texts: dict[str, str | bool] = {}
    vad: Vad | bool = False
    turns: Turns | bool = False
    speakers: Speakers | bool = False
    final_model: str = ""

    def ask(self, info: ModelInfo) -> Ask:
        """What is asked of a model; `InputError` if an option of the search or of texts is unfit, or a language."""
        vad = Vad() if self.vad is True else self.vad or None
        turns = Turns() if self.turns is True else self.turns or None
        speakers = Speakers() if self.speakers is True else self.speakers or None
        return Ask(
            model=self.model,
            search={
                **language_parameters(info, self.language, self.allowed_languages, is_asked=True),
                **self.search,
            },
            details=self.words,
            words="wanted" if self.words else "none",
            texts=TextOptions().changed(self.texts),
            vad=VadOptions(**vad.model_dump()) if vad else None,
            turns=TurnOptions(**turns.model_dump()) if turns else None,
            speakers=SpeakerOptions(**speakers.model_dump()) if speakers else None,
            final_model=self.final_model,
        )


def read_start(fields: Mapping[str, Any], query: Mapping[str, str]) -> Start:
    """The options of a first message and of the address; `InputError` names those that are unknown or unfit."""
    given: dict[str, Any] = {name: query[name] for name in IN_ADDRESS if name in query}
    try:
        if "sample_rate" in given:
            given["sample_rate"] = int(given["sample_rate"])
        return Start.model_validate({**given, **fields})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise InputError(f"the options of the stream cannot be used: {problems}") from error
    except ValueError as error:
        raise InputError(f"sample_rate in the address must be a whole number, got {query['sample_rate']!r}") from error
