"""Systems that search in other ways: how they are written, what they describe, and streams with segments."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from toy import SAMPLE_RATE, toy_waveform
from tritone.audio.waveform import Waveform
from tritone.systems import Playback, ServedSystem, open_system, parse_spec, streams
from tritone.systems.streams import whole
from tritone.transcript import Span, Transcript

RATE = 1000


class Segments:
    """A stream in which every chunk but the last is a segment of its own, with one word."""

    def __init__(self) -> None:
        self._ended: list[Transcript] = []

    def accept(self, samples: Waveform) -> Transcript:
        number = len(self._ended)
        word = Span(f"w{number}", number, number + 0.5, 0.5 + number / 10)
        self._ended.append(Transcript(word.text, (word,), (word,), word.confidence, number + 1.0, segment=number))
        return Transcript("", segment=number + 1, ended=(self._ended[-1],), history=self._history(), is_final=False)

    def finish(self) -> Transcript:
        number = len(self._ended)
        word = Span("end", number, number + 0.5, 1.0)
        return Transcript("end", (word,), (word,), 1.0, number + 0.5, segment=number, history=self._history())

    def close(self) -> None:
        pass

    def _history(self) -> str:
        return " ".join(each.text for each in self._ended)


def test_the_transcript_of_a_stream_with_segments_is_of_all_of_them(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(300), RATE, subtype="FLOAT")
    (outcome,) = streams.play_files(
        [str(tmp_path / "a.wav")],
        lambda: closing(Segments()),
        sample_rate=RATE,
        playback=Playback(chunk_ms=100),
        concurrency=1,
    )
    found = outcome.transcript
    assert found.text == found.whole_text == "w0 w1 w2 end"
    assert [word.text for word in found.words] == [token.text for token in found.tokens] == ["w0", "w1", "w2", "end"]
    assert [(each.segment, each.text) for each in found.ended] == [(0, "w0"), (1, "w1"), (2, "w2"), (3, "end")]
    assert found.confidence == pytest.approx((0.5 + 0.6 + 0.7 + 1.0) / 4)
    assert (found.audio_s, found.is_final, found.segment) == (3.5, True, 3)
    # The last chunk's answer is not seen apart: `finish` follows at once.
    assert [partial.text for partial in outcome.partials] == ["w0", "w0 w1", "w0 w1 w2 end"]


def test_a_stream_of_one_segment_stays_as_it_is() -> None:
    last = Transcript("all", confidence=0.5, audio_s=2.0)
    assert whole(last, []) is last


def test_segments_without_words_have_no_confidence() -> None:
    assert whole(Transcript("", segment=1, history=""), [Transcript("")]).confidence is None


def test_a_served_system_takes_the_parameters_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, url: str, **options: Any) -> None:
            assert options == {"timeout_s": 7.0}
            self.endpoint = url
            self.transcribe_iter = None

    monkeypatch.setattr("tritone.client.Client", Client)
    spec = "there=grpc://localhost:1/m,timeout_s=7,search=prefix-beam,beam=20,hotwords=anna:8;new york:5"
    system = open_system(spec)
    assert isinstance(system, ServedSystem)
    search = {"search": "prefix-beam", "beam": "20", "hotwords": "anna:8,new york:5"}
    assert system._request["search"] == search
    plain = open_system("there=grpc://localhost:1/m,timeout_s=7")
    assert dict(system.describe()) == dict(plain.describe()) | search
    with pytest.raises(ValueError, match=r"unknown lm; a served model takes .*search, beam, nbest"):
        parse_spec("grpc://localhost:1/m,lm=words.arpa")


def test_a_bundle_takes_the_search_of_load(toy_bundle: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "ab.wav")
    soundfile.write(path, toy_waveform("ab"), SAMPLE_RATE, subtype="FLOAT")
    with closing(open_system(f"{toy_bundle},search=prefix-beam,beam=8,nbest=2,hotwords=ax:0;ay:-1")) as system:
        (outcome,) = system.run([path])
        assert outcome.transcript.text == "ab"
        assert len(outcome.transcript.alternatives) == 2
        assert {"search": "prefix-beam", "beam": "8"}.items() <= system.describe().items()


def test_options_of_a_bundle_that_its_search_does_not_look_at_are_refused(toy_bundle: Path) -> None:
    with pytest.raises(ValueError, match="hotwords, nbest has no effect with search=greedy; add search=prefix-beam"):
        open_system(f"{toy_bundle},nbest=2,hotwords=ax:0")
    with pytest.raises(ValueError, match="ctc_weight has no effect with search=prefix-beam; add search=rescoring"):
        open_system(f"{toy_bundle},search=prefix-beam,ctc_weight=0.2")
