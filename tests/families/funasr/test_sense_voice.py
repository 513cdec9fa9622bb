"""SenseVoice-Small from FunASR's folder: upstream's numbers, ragged batches, what requests ask for, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tritone
from effort import TORCH, runtimes
from families import funasr_models
from families.funasr import upstream
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError, InputError
from tritone.families.export import frame
from tritone.families.funasr.checkpoint import read_statistics
from tritone.families.funasr.config import SENSE_VOICE_TAGS as TAGS
from tritone.families.funasr.config import parse_config
from tritone.families.funasr.export import export_funasr
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.graphs import SenseVoiceGraph
from tritone.families.funasr.model import LANGUAGES, SenseVoice
from tritone.families.known import recognise
from tritone.pipelines.offline import OfflinePipeline
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

GOLDEN = np.load(upstream.PATH)
SIGNALS = upstream.signals()
OPTIONS = [SearchOptions(language=language, use_itn=use_itn) for language, use_itn in upstream.ASKED]
QUESTIONS = len(TAGS)
CODES = ("zh", "en", "yue", "ja", "ko")  # among what may come first with these weights


def upstream_log_probs(index: int) -> Any:
    return GOLDEN[f"sense_voice_{index}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return funasr_models.write_sense_voice(tmp_path_factory.mktemp("funasr") / "SenseVoiceSmall")


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    report = export_funasr(
        folder=folder,
        output=tmp_path_factory.mktemp("bundles") / "small",
        runtimes=runtimes(),
        precisions=("fp32",),
    )
    assert any("option language, auto if none is given" in note for note in report.notes)
    return report.bundle


@pytest.fixture(scope="module")
def offline(folder: Path) -> SenseVoiceGraph:
    config = parse_config(funasr_models.sense_voice_content())
    network = SenseVoice.of(config, funasr_models.sense_voice_state(config), upstream.VOCAB, "here")
    return SenseVoiceGraph(network, StackedFbank(config.front_end, *read_statistics(folder / "am.mvn", 560))).eval()


def test_features_are_upstreams_also_beside_longer_ones(offline: SenseVoiceGraph) -> None:
    block = np.full((len(SIGNALS), max(map(len, SIGNALS))), 0.3, np.float32)  # what is behind a row may be anything
    for row, signal in zip(block, SIGNALS, strict=True):
        row[: len(signal)] = signal
    rows, counts = offline.front_end(torch.from_numpy(block), torch.tensor([len(each) for each in SIGNALS]))
    expected = [GOLDEN[f"features_{index}"] for index in range(len(SIGNALS))]
    assert counts.tolist() == [len(each) for each in expected]
    for row, count, wanted in zip(rows, counts.tolist(), expected, strict=True):
        np.testing.assert_allclose(row[:count, ::7].numpy(), wanted, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("runtime", ["onnxruntime", TORCH])
def test_log_probabilities_and_answers_are_upstreams_in_any_company(bundle: Bundle, runtime: str) -> None:
    from tritone.pipelines.graphs.placement import Placement
    from tritone.pipelines.graphs.runner import GraphRunner

    runner = GraphRunner(bundle, "encoder", Placement(runtime=runtime))
    encoder, order = bundle.manifest.encoder, [6, 2, 0, 5, 1, 4, 3]
    filled = runner.filled(
        [SIGNALS[index] for index in order],
        max(map(len, SIGNALS)),
        asked=[encoder.asked(*upstream.ASKED[index]) for index in order],
    )
    found = runner.compute(filled.inputs, ("log_probs", "num_frames", "tags"))
    for row, index in enumerate(order):
        wanted = upstream_log_probs(index)
        assert found["num_frames"][row] == len(wanted) - QUESTIONS
        np.testing.assert_allclose(
            found["log_probs"][row, : len(wanted) - QUESTIONS], wanted[QUESTIONS:], atol=1e-3, rtol=0
        )
        assert found["tags"][row].tolist() == wanted[:QUESTIONS].argmax(axis=1).tolist()


def test_texts_tags_and_times_are_those_of_upstreams_tokens(bundle: Bundle) -> None:
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_proto=funasr_models.pieces_model())
    marks = {pieces.piece_to_id(each) for each in funasr_models.MARKS}
    together = OfflinePipeline(bundle).recognize(SIGNALS, OPTIONS)
    seen: set[str] = set()
    for index, transcript in enumerate(together):
        best = upstream_log_probs(index).argmax(axis=1)
        spoken = best[QUESTIONS:]
        starts = [at for at, id in enumerate(spoken) if id != 0 and (at == 0 or spoken[at - 1] != id)]
        words = [int(spoken[at]) for at in starts if int(spoken[at]) not in {1, 2} | marks]
        assert transcript.text == " ".join(pieces.decode(words).split())
        assert [round(token.start_s / 0.06) for token in transcript.tokens] == starts
        said = {
            name: pieces.id_to_piece(int(id))[2:-2] for name, id in zip(TAGS, best, strict=False) if int(id) in marks
        }
        assert dict(transcript.tags) == said
        assert transcript.language == ("" if said.get("language") not in CODES else said["language"])
        assert Transcript.from_dict(json.loads(json.dumps(transcript.to_dict()))).tags == transcript.tags
        seen |= set(said)
    assert seen == set(TAGS)
    assert any(each.language for each in together)


def test_each_alone_has_the_same_result_and_requests_differ(bundle: Bundle) -> None:
    recognizer = tritone.load(bundle.path)
    together = OfflinePipeline(bundle).recognize(SIGNALS, OPTIONS)
    for signal, (language, use_itn), expected in zip(SIGNALS, upstream.ASKED, together, strict=True):
        [alone] = recognizer.transcribe([signal], search={"language": language, "use_itn": use_itn})
        assert alone.value == expected
    usual = tritone.load(bundle.path, language="en", use_itn=True).transcribe(SIGNALS[:1])[0]
    assert usual.value == recognizer.transcribe(SIGNALS[:1], search={"language": "en", "use_itn": True})[0].value
    texts = {recognizer.transcribe(SIGNALS[:1], search={"language": each})[0].text for each in LANGUAGES}
    assert len(texts) > 1
    with pytest.raises(InputError, match="language is 'de', and this model knows auto, zh, en"):
        recognizer.transcribe(SIGNALS[:1], search={"language": "de"})


def test_beams_of_it_have_its_tags(bundle: Bundle) -> None:
    greedy, beam = (
        OfflinePipeline(bundle).recognize(SIGNALS[:2], [SearchOptions(mode=mode, nbest=nbest)] * 2)
        for mode, nbest in (("greedy", 1), ("prefix-beam", 3))
    )
    for ours, theirs in zip(greedy, beam, strict=True):
        assert ours.tags == theirs.tags
        assert len(theirs.alternatives) > 1


def test_models_of_one_form_refuse_use_itn() -> None:
    with pytest.raises(InputError, match="writes in one form alone"):
        tritone.load("demo-asr").transcribe([np.zeros(8000, np.float32)], search={"use_itn": True})


def test_the_folder_is_recognised_and_the_command_exports_it(folder: Path, tmp_path: Path) -> None:
    found = recognise(folder)
    assert (found.family, found.first) == ("funasr", "folder")
    assert {each.name for each in found.files} >= {"config.yaml", "model.pt", "am.mvn"}
    result = CliRunner().invoke(app, ["export", "funasr", str(folder), "--output", str(tmp_path / "bundle")])
    assert result.exit_code == 0, result.output
    assert Bundle.open(tmp_path / "bundle").manifest.encoder.text_forms == (15, 14)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"normalize_before": False}, "normalize_before"),
        ({"input_layer": "conv2d"}, "encoder_conf.input_layer is 'conv2d'"),
        ({"selfattention_layer_type": "selfattn"}, "selfattention_layer_type"),
        ({"attention_heads": 5}, "output_size 32 has no whole number of channels"),
        ({"sanm_shfit": 4}, "sanm_shfit 4 is beyond what kernel_size 5 sees"),
        ({"twisted": 1}, "encoder_conf: unknown twisted"),
        ({"num_blocks": 10**7}, "num_blocks is 10000000, expected 1 to 1000"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(funasr_models.sense_voice_content(**changes))


def test_other_models_and_unknown_settings_are_refused() -> None:
    content = funasr_models.sense_voice_content()
    for changes, said in (
        ({"model": "Qwen"}, "config.model is 'Qwen'; models of FunASR that are exported are SenseVoiceSmall"),
        ({"normalize": "UtteranceMVN"}, "config.normalize is set"),
        ({"rotations": 2}, "config: unknown rotations"),
        ({"frontend_conf": upstream.FRONT_END | {"lfr_n": 8}}, "lfr_n 8 is beyond lfr_m 7"),
        ({"frontend_conf": upstream.FRONT_END | {"snip_edges": False}}, "snip_edges is false"),
    ):
        with pytest.raises(ExportError, match=said):
            parse_config(content | changes)


def test_files_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    def written(name: str, content: bytes) -> Path:
        copy = tmp_path / name
        funasr_models.write_sense_voice(copy)
        (copy / name).write_bytes(content)
        return copy

    text = upstream.statistics()
    for name, content, said in (
        ("am.mvn", b"<Nnet>", "have no <AddShift>"),
        ("am.mvn", upstream.statistics(480).encode(), "has 480 numbers, the features have 560"),
        (
            "am.mvn",
            text.replace(
                "<Rescale> 560 560 \n<LearnRateCoef> 0 [", "<Rescale> 560 560 \n<LearnRateCoef> 0 [ x"
            ).encode(),
            "no number",
        ),
        (
            "chn_jpn_yue_eng_ko_spectok.bpe.model",
            funasr_models.pieces_model(70),
            r"does not fit its config and 70 tokens",
        ),
        ("model.pt", b"nothing", "cannot be read safely"),
    ):
        with pytest.raises(ExportError, match=said):
            export_funasr(folder=written(name, content), output=tmp_path / "b")
    (copy := tmp_path / "model.pt").joinpath("other.bpe.model").write_bytes(b"")
    with pytest.raises(ExportError, match=r"should have one file \*\.bpe\.model"):
        export_funasr(folder=copy, output=tmp_path / "b")
    with pytest.raises(ExportError, match="leave them out"):
        export_funasr(folder=folder, output=tmp_path / "b", stages=True)


def test_an_export_that_needs_more_memory_than_there_is_says_so_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = funasr_models.write_sense_voice(tmp_path / "m"), list[str]()
    for limit in (None, 2**40, 10**8):
        monkeypatch.setattr(frame, "machine_bytes", lambda found=limit: found)
        export_funasr(folder=folder, output=tmp_path / "b", check=False, progress=said.append)
    warned = [place for place, each in enumerate(said) if "the system may end it" in each]
    assert len(warned) == 1
    assert "about 0.4 GB of memory" in said[warned[0]]
    assert said[warned[0] + 1].startswith("making encoder.onnx")
