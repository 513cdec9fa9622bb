"""Exported icefall models against arrays made by upstream's own code: encoder, predictor and joiner as graphs.

An exported encoder ends with the joiner's projection, so upstream's frames are projected before they are compared.
Tolerances are five times those of the torch network, as the golden data's README has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from parity.front_end import as_samples, icefall_sizes
from parity.golden_cases import Case, largest, rows
from tritone.bundle.bundle import Bundle
from tritone.families.icefall.checkpoint import load_model
from tritone.families.icefall.stateless import Joiner
from tritone.kinds.transducer.part import TransducerPart
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.runtime import Graph, open_graph

pytestmark = pytest.mark.slow

ENCODER_ATOL = 2.5e-4
LOGIT_ATOL = 5e-4


@lru_cache
def joiner_of(folder: Path) -> Joiner:
    return load_model([folder / "pretrained.pt"]).joiner


@dataclass
class Exported:
    """The graphs of a case for one runtime."""

    case: Case
    bundle: Bundle
    runtime: str

    def graph(self, role: str) -> Graph:
        return open_graph(self.bundle.artifact(role, self.runtime), threads=1)  # type: ignore[arg-type]

    @torch.no_grad()
    def project(self, frames: np.ndarray) -> np.ndarray:
        """Upstream's encoder frames as the joiner takes them."""
        projected: np.ndarray = joiner_of(self.case.path).project_encoder(torch.from_numpy(frames)).numpy()
        return projected


def runs_of(case: Case, path: Path) -> list[Exported]:
    """The bundle of a case for each of its runtimes."""
    bundle = Bundle.open(path)
    return [Exported(case, bundle, runtime) for runtime in bundle.runtimes]


def spared(case: Case) -> list[int]:
    """Rows of upstream's batch that no padding reached: all it can reach a conformer through is one convolution."""
    lengths, conformer = case.inputs["lengths"], "conformer" in icefall_sizes(case)["kind"]
    return [row for row, n in enumerate(lengths) if n == lengths.max() or (conformer and n % 4 != 3)]


def unpadded(case: Case) -> Mapping[int, np.ndarray]:
    """By utterance, upstream's encoder frames where no padding reached them."""
    expected = case.expected
    prefix = "full_context_" if icefall_sizes(case)["streaming"] else ""
    batch, counts = (expected[f"{prefix}encoder_out{suffix}"] for suffix in ("", "_lens"))
    alone = {row: f"single{row}_encoder_out" for row in range(len(batch))}
    found = {row: expected[name] for row, name in alone.items() if name in expected}
    return {row: batch[row, : counts[row]] for row in spared(case)} | found


def test_a_batch_equals_each_utterance_alone(icefall_case: Case, exported) -> None:
    for graphs in runs_of(icefall_case, exported(icefall_case)):
        waveforms = as_samples(graphs.case)
        longest = max(map(len, waveforms))
        feed = {
            "waveform": np.stack([np.pad(each, (0, longest - len(each))) for each in waveforms]),
            "num_samples": np.array([len(each) for each in waveforms]),
        }
        encoded, num_frames = graphs.graph("encoder")(feed, ["encoder_out", "num_frames"])
        expected = unpadded(graphs.case)
        assert expected
        for row, frames in expected.items():
            assert num_frames[row] == len(frames)
            assert largest(encoded[row, : len(frames)], graphs.project(frames)) <= ENCODER_ATOL


def test_streams_side_by_side_equal_each_stream_alone_to_its_flushed_end(
    icefall_streaming_case: Case, exported
) -> None:
    """Streams that have ended stay in the batch, as neighbours that must not matter."""
    for graphs in runs_of(icefall_streaming_case, exported(icefall_streaming_case)):
        expected, streaming = graphs.case.expected, graphs.bundle.manifest.streaming
        assert streaming is not None
        assert streaming.flush_samples is not None
        waveforms, graph = as_samples(graphs.case), graphs.graph("streaming_encoder")
        window, shift, bins = streaming.window_samples, streaming.shift_samples, graphs.case.inputs["features"].shape[2]
        sizes = icefall_sizes(graphs.case)
        assert window == sizes["decode_window"] * bins
        states = {each.name: np.zeros((len(waveforms), *each.sizes(0)), each.dtype) for each in streaming.states}
        counts = [expected[f"stream{row}_chunk_out_lens"] for row in range(len(waveforms))]
        parts: list[list[np.ndarray]] = [[] for _ in waveforms]
        for step in range(max(map(len, counts))):
            num_samples = np.array([min(max(len(each) - step * shift, 0), window) for each in waveforms])
            block = np.zeros((len(waveforms), window), np.float32)
            for row, (waveform, count) in enumerate(zip(waveforms, num_samples, strict=True)):
                block[row, :count] = waveform[step * shift :][:count]
            feed = {"waveform": block, "num_samples": num_samples, **states}
            outputs = ["encoder_out", "num_frames", *(f"next_{name}" for name in states)]
            encoded, num_frames, *rest = graph(feed, outputs)
            states = dict(zip(states, rest, strict=True))
            for row, waveform in enumerate(waveforms):
                goes_on = shift * step < len(waveform) + streaming.flush_samples
                assert goes_on == (step < len(counts[row])), "upstream's streams end with this step"
                if goes_on:
                    assert num_frames[row] == counts[row][step]
                    parts[row].append(encoded[row, : num_frames[row]])
        for row, found in enumerate(parts):
            assert largest(np.concatenate(found), graphs.project(expected[f"stream{row}_encoder_out"])) <= ENCODER_ATOL


def test_predictor_and_joiner_give_upstreams_logits(icefall_case: Case, exported) -> None:
    """Contexts with ids of -1 among them."""
    for graphs in runs_of(icefall_case, exported(icefall_case)):
        expected = graphs.case.expected
        [predicted] = graphs.graph("predictor")({"context": expected["contexts"].astype(np.int64)}, ["predictor_out"])
        assert largest(predicted, expected["joiner_decoder_proj"]) <= ENCODER_ATOL
        feed = {"encoder_out": expected["joiner_encoder_proj"], "predictor_out": predicted}
        [logits] = graphs.graph("joiner")(feed, ["logits"])
        assert largest(logits, expected["joiner_logits"]) <= LOGIT_ATOL


def test_the_manifest_has_the_sizes_and_tokens_of_the_case(icefall_case: Case, exported) -> None:
    for graphs in runs_of(icefall_case, exported(icefall_case)):
        manifest, sizes = graphs.bundle.manifest, icefall_sizes(graphs.case)
        assert manifest.kind == "transducer"
        assert (manifest.vocabulary.size, manifest.vocabulary.blank_id) == (sizes["vocab_size"], sizes["blank_id"])
        assert (manifest.part(TransducerPart).context_size, manifest.encoder.output_dim) == (
            sizes["context_size"],
            sizes["joiner_dim"],
        )
        table = (graphs.case.path / "tokens.txt").read_text(encoding="utf-8").splitlines()
        assert graphs.bundle.vocabulary.tokens == tuple(line.split()[0] for line in table)


def texts(graphs: Exported, array: str) -> list[str]:
    expected = graphs.case.expected
    return [graphs.bundle.vocabulary.text(row) for row in rows(expected[array], expected[f"{array}_lens"])]


def test_offline_pipeline_gives_upstreams_greedy_text(icefall_offline_case: Case, exported) -> None:
    for graphs in runs_of(icefall_offline_case, exported(icefall_offline_case)):
        expected = texts(graphs, "greedy_tokens")
        pipeline = open_offline(graphs.bundle, placement=Placement(runtime=graphs.runtime, threads=1))
        found = pipeline.recognize(as_samples(graphs.case))
        compared = spared(graphs.case)
        assert [found[row].text for row in compared] == [expected[row] for row in compared]


def test_streaming_pipeline_gives_upstreams_greedy_text_of_every_stream_alone(
    icefall_streaming_case: Case, exported
) -> None:
    for graphs in runs_of(icefall_streaming_case, exported(icefall_streaming_case)):
        pipeline = open_streaming(graphs.bundle, placement=Placement(runtime=graphs.runtime, threads=1))
        waveforms = as_samples(graphs.case)
        slots = [pipeline.open() for _ in waveforms]
        found = pipeline.advance([Step(slot, each, True) for slot, each in zip(slots, waveforms, strict=True)])
        assert [each.text for each in found] == texts(graphs, "stream_greedy_tokens")
