"""Words with times: who needs them has a model asked for them, whatever the protocol, and nobody else."""

from typing import Any

import pytest

from tritone.client.endpoint import Endpoint
from tritone.client.models import ModelInfo
from tritone.client.requests import Asked
from tritone.errors import InputError
from tritone.gateway.ask import Ask, SpeakerOptions, search_of
from tritone.gateway.protocols.deepgram.request import ListenRequest
from tritone.gateway.protocols.riva import messages
from tritone.gateway.protocols.riva.config import asked
from tritone.gateway.protocols.vosk.websocket import Config
from tritone.gateway.stream_options import Start

WHISPER = ModelInfo(
    name="w", kind="offline", has_details=True, has_search=True, decodes=True, has_prompt=True, has_word_times=True
)
MOONSHINE = ModelInfo(name="m", kind="offline", has_details=True, has_search=True, decodes=True)
CTC = ModelInfo(name="c", kind="offline", has_details=True, has_search=True)


def riva(**fields: Any) -> Ask:
    config = messages.RecognitionConfig(**fields)
    return asked(config, streams=False).ask


SPOKEN = {"diarization_config": {"enable_speaker_diarization": True}}


@pytest.mark.parametrize(
    ("ask", "parameters"),
    [
        (Ask(), {"word_times": False}),
        (Ask(speakers=SpeakerOptions()), {"word_times": True}),
        (ListenRequest().ask(WHISPER), {"word_times": "auto"}),
        (ListenRequest(diarize=True).ask(WHISPER), {"word_times": True}),
        (riva(), {"word_times": False}),
        (riva(enable_word_time_offsets=True), {"word_times": True}),
        (riva(**SPOKEN), {"word_times": True}),
        (riva(custom_configuration={"word_times": "true"}), {"word_times": "true"}),
        (riva(enable_word_time_offsets=True, custom_configuration={"word_times": "false"}), {"word_times": True}),
        (Start().ask(WHISPER), {"word_times": False}),
        (Start(words=True).ask(WHISPER), {"word_times": "auto"}),
        (Start(speakers=True).ask(WHISPER), {"word_times": True}),
        (Config().ask(has_beam=False), {"word_times": "auto"}),
        (Config(words=False).ask(has_beam=False), {"word_times": False}),
    ],
)
def test_a_model_that_takes_longer_for_words_is_asked_for_them_where_they_are_wanted(
    ask: Ask, parameters: dict[str, Any]
) -> None:
    assert search_of(ask, WHISPER) == parameters


@pytest.mark.parametrize("ask", [Ask(words="needed"), Ask(speakers=SpeakerOptions())])
def test_who_needs_words_of_a_model_without_times_of_them_is_refused(ask: Ask) -> None:
    with pytest.raises(InputError, match="model 'm' gives no times of words"):
        search_of(ask, MOONSHINE)
    assert search_of(Ask(words="wanted"), MOONSHINE) == search_of(Ask(), MOONSHINE) == {}
    with pytest.raises(InputError, match="no times of words"):
        search_of(ask, ModelInfo(name="text", kind="streaming"))


def test_a_model_that_was_built_without_times_gives_them_where_they_are_needed() -> None:
    assert search_of(Ask(words="needed"), CTC) == {"timestamps": True}
    assert search_of(Ask(words="wanted"), CTC) == search_of(Ask(), CTC) == {}


def test_details_of_a_client_have_words() -> None:
    def parameters(info: ModelInfo, *, details: bool, **search: Any) -> dict[str, Any]:
        return Asked.of(info, details, search, Endpoint.parse("localhost:1", None)).parameters

    assert parameters(WHISPER, details=True) == {"word_times": "auto"}
    assert parameters(WHISPER, details=True, word_times=False) == {"word_times": False}
    assert parameters(WHISPER, details=False) == parameters(CTC, details=True) == {}
    assert parameters(MOONSHINE, details=True) == {}
