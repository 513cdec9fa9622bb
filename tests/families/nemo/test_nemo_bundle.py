"""What an exported NeMo model promises: the bundle, its searches, precisions, the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner

import tritone
from families.conftest import babble
from families.nemo_models import LABELS, Exported, export_tdt, small_config, write_archive
from nemo_reference import Reference
from search.test_stateful_beam import oracle as plain_beam
from shared import Shared
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError, InputError
from tritone.families.nemo.export import export_nemo
from tritone.kinds.transducer.part import TransducerPart
from tritone.pipelines.searching.transducer import GraphNetwork, TransducerSearching
from tritone.repository import ModelOptions, build_repository
from tritone.runtime import open_graph
from tritone.search.hypothesis import ids_of
from tritone.search.options import SearchOptions
from tritone.search.scoring.scorer import Scorer

LENGTHS = (9000, 16000, 319, 12345)


@pytest.fixture(scope="session")
def tdt(shared: Shared) -> Exported:
    return shared("nemo-tdt", export_tdt)


def test_the_manifest_tells_what_serving_must_know(tdt: Exported) -> None:
    manifest = Bundle.open(tdt.bundle).manifest
    assert (manifest.kind, manifest.provenance.family) == ("transducer", "nemo")
    assert (manifest.part(TransducerPart).context_size, manifest.part(TransducerPart).start) == (1, (24,))
    assert manifest.part(TransducerPart).durations == (0, 1, 2, 4)
    assert manifest.part(TransducerPart).max_symbols == 3
    assert [(each.name, each.shape) for each in manifest.part(TransducerPart).states] == [
        ("hidden", (2, 12)),
        ("cell", (2, 12)),
    ]
    assert (manifest.encoder.subsampling_rate, manifest.encoder.output_dim, manifest.encoder.min_samples) == (
        8,
        64,
        320,
    )
    assert (manifest.features.kind, manifest.features.num_mel_bins, manifest.features.normalize) == (
        *("log-mel", 20, "per-feature"),
    )
    assert (manifest.tokens.size, manifest.tokens.units, manifest.tokens.blank_id, manifest.tokens.unk_id) == (
        *(25, "bpe", 24, 0),
    )
    assert "--head ctc" in tdt.notes[0]


def test_the_exported_model_writes_the_references_tokens(tdt: Exported) -> None:
    waveforms = [babble(length, seed=length) for length in LENGTHS]
    found = tritone.load(tdt.bundle).transcribe(waveforms)
    pieces = Bundle.open(tdt.bundle).vocabulary.tokens
    for waveform, result in zip(waveforms, found, strict=True):
        expected = tdt.model.greedy(torch.from_numpy(waveform)) if len(waveform) >= 320 else []
        assert [(token.text, round(token.start_s / 0.08, 3)) for token in result.tokens] == [
            (pieces[token], frame) for token, frame in expected
        ]
        assert all(token.end_s <= len(waveform) / 16000 + 0.08 for token in result.tokens)
    assert sum(len(result.tokens) for result in found) > 5


def test_a_model_says_no_to_fast_beam_where_it_is_built_and_where_it_is_asked(tdt: Exported, tmp_path: Path) -> None:
    told = "whose predictor has a state .* take modified-beam"
    with pytest.raises(BundleError, match=f"a TDT model {told}"):
        build_repository([Bundle.open(tdt.bundle).path], tmp_path / "r", options=ModelOptions(search="fast-beam"))
    with pytest.raises(BundleError, match=told):
        tritone.load(tdt.bundle, search="fast-beam").transcribe([babble(9000)])
    with pytest.raises(InputError, match=told):
        tritone.load(tdt.bundle).transcribe([babble(9000)], search={"search": "fast-beam"})


def test_a_beam_over_the_exported_graphs_finds_what_the_plain_search_finds_whole_and_in_steps(tdt: Exported) -> None:
    bundle = Bundle.open(tdt.bundle)
    network = GraphNetwork(bundle)
    searching = TransducerSearching(bundle, network)
    frames = np.random.default_rng(0).normal(size=(3, 9, 64)).astype(np.float32)
    lengths = np.array([9, 4, 7])
    ways = [
        SearchOptions(mode="modified-beam", beam=4, nbest=4, blank_penalty=3.0),
        SearchOptions(mode="modified-beam", beam=1, hotwords=(("hello world", 4.0),)),
        SearchOptions(mode="modified-beam", beam=3, nbest=3, temperature=2.0),
    ]
    ways = [searching.check(way) for way in ways]
    found = searching.search({"encoder_out": frames, "num_frames": lengths}, ways)
    hot = Scorer.build(bundle.vocabulary.spellings, lm=None, lm_weight=0, word_bonus=0, hotwords=ways[1].hotwords)
    for row, (hypotheses, way, scorer) in enumerate(zip(found, ways, [None, hot, None], strict=True)):
        expected = plain_beam(
            network, frames[row, : lengths[row]], way.beam, scorer, way.blank_penalty, way.temperature
        )
        assert {tuple(ids_of(each.tokens)): pytest.approx(each.log_prob, abs=1e-3) for each in hypotheses} == {
            tokens: log_prob for tokens, (log_prob, _) in expected.items()
        }
    started = [searching.start(way) for way in ways]
    said: list[list[int]] = [[] for _ in ways]
    for at in range(0, 9, 2):
        step = {"encoder_out": frames[:, at : at + 2], "num_frames": np.clip(lengths - at, 0, 2)}
        for row, news in enumerate(searching.advance(started, step)):
            said[row] += ids_of(news.tokens)
    for row, hypotheses in enumerate(searching.finish(started)):
        assert [list(each.tokens) for each in hypotheses] == [list(each.tokens) for each in found[row]]
        assert ids_of(hypotheses[0].tokens)[: len(said[row])] == said[row]
    assert sum(map(len, said)) > 0


def test_requests_with_and_without_a_beam_share_a_batch_and_hotwords_change_their_own_text(tdt: Exported) -> None:
    model = tritone.load(tdt.bundle)
    waveforms = [babble(length, seed=length) for length in (16000, 12345)]
    (plain, other) = model.transcribe(waveforms)
    searched = model.transcribe(waveforms, search={"search": "modified-beam", "beam": 1})
    narrow = model.transcribe(waveforms, search={"max_symbols": 1})
    assert [each.text for each in searched] == [each.text for each in narrow]
    beam = {"search": "modified-beam", "beam": 4, "nbest": 4}
    (usual,) = model.transcribe(waveforms[:1], search=beam)
    (hot,) = model.transcribe(waveforms[:1], search={**beam, "hotwords": "hello:20"})
    assert "hello" in hot.text
    assert "hello" not in usual.text
    assert len(usual.alternatives) > 1
    assert (plain.text, other.text) == tuple(each.text for each in model.transcribe(waveforms))


def test_more_symbols_and_a_penalty_are_options_of_requests(tdt: Exported) -> None:
    (usual,) = tritone.load(tdt.bundle).transcribe([babble(16000, seed=16000)])
    (more,) = tritone.load(tdt.bundle, blank_penalty=8.0, max_symbols=5).transcribe([babble(16000, seed=16000)])
    starts = [token.start_s for token in more.tokens]
    assert len(starts) > len(usual.tokens)
    assert max(starts.count(start) for start in starts) <= 5


@pytest.mark.slow
def test_graphs_in_narrow_precisions_are_close_to_the_reference(tdt: Exported, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "runtimes": ("onnxruntime", "torch"),
        "precisions": ("fp16", "int8"),
        "max_drift": 1.0,
        "check_audio": tmp_path / "audio",
    }
    (tmp_path / "audio").mkdir()
    soundfile.write(tmp_path / "audio" / "a.wav", babble(16000, seed=5), 16000)
    report = export_nemo(archive=tdt.archive, output=tmp_path / "b", **options)
    block = np.full((2, 9000), 0.3, np.float32)
    block[0], block[1, :4000] = babble(9000, seed=1), babble(4000, seed=2)
    assert len(report.drifts) == 9, "three graphs in fp16 of both runtimes, and in int8"
    for artifact in report.bundle.artifacts("encoder"):
        graph = open_graph(report.bundle.path / artifact.files[0])
        found, counts = graph({"waveform": block, "num_samples": np.array([9000, 4000])}, ["encoder_out", "num_frames"])
        for row, length in enumerate((9000, 4000)):
            expected = tdt.model.joint.enc(tdt.model.encode(torch.from_numpy(block[row, :length])))
            assert counts[row] == len(expected)
            most = {"fp16": 0.05, "int8": 0.5}[artifact.precision]
            np.testing.assert_allclose(found[row, : counts[row]], expected, atol=most)


@pytest.mark.slow
def test_the_command_exports_the_other_head(tdt: Exported, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["export", "nemo", str(tdt.archive), "--head", "ctc", "--output", str(tmp_path / "c")]
    )
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(tmp_path / "c")
    assert (bundle.manifest.kind, bundle.manifest.find(TransducerPart)) == ("ctc", None)
    waveform = babble(9000, seed=9000)
    graph = open_graph(bundle.artifact("encoder"))
    feed = {"waveform": waveform[None], "num_samples": np.array([9000])}
    [found] = graph(feed, ["log_probs"])
    np.testing.assert_allclose(found[0], tdt.model.log_probs(torch.from_numpy(waveform)), atol=1e-3)
    best, text = found[0].argmax(axis=1).tolist(), tritone.load(bundle.path).transcribe(waveform).text
    said = [id for index, id in enumerate(best) if id != 24 and (not index or best[index - 1] != id)]
    assert text == bundle.vocabulary.text(said)


def test_a_head_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for kind, head, said in (("ctc", "transducer", "CTC head alone"), ("rnnt", "ctc", "has no CTC head")):
        archive = write_archive(tmp_path / f"{kind}.nemo", Reference(small_config(kind), len(LABELS)))
        with pytest.raises(ExportError, match=said):
            export_nemo(archive=archive, output=tmp_path / "b", head=head)
