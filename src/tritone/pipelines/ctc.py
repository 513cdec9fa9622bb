"""Offline recognition with a CTC model.

waveforms (samples,) float32 in [-1, 1]  ->  transcripts
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.pipelines.assembly import TranscriptBuilder
from tritone.pipelines.batching import Batch, BatchLimits, bucket_length, plan_batches
from tritone.pipelines.contract import check_graph
from tritone.runtime import open_graph
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array
from tritone.search.ctc import ctc_greedy
from tritone.search.hypothesis import Token
from tritone.transcript import Transcript

DEFAULT_MAX_AUDIO_S = 300.0


class CtcPipeline:
    """Recognises whole utterances. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "cpu",
        threads: int | None = None,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            bundle: an opened bundle of kind `ctc`.
            device, threads: see `tritone.runtime.open_graph`.
            max_audio_s: the longest utterance that callers let through, in seconds; `warm_up` goes up to it.
            limits: what one graph call may take; by default what suits the device.

        Raises:
            BundleError: the bundle has no offline encoder, or one that cannot be opened or does not fit its manifest.
            OperatorError: the device is not available.
        """
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self.limits = limits or BatchLimits.for_device(device)
        self._graph = open_graph(bundle.artifact("encoder"), device, threads)
        check_graph(self._graph, bundle, "encoder")
        self._crew = Crew(self._graph.concurrency)
        self._min_samples = bundle.manifest.encoder.min_samples
        self._tail = bundle.manifest.encoder.tail_samples

    def recognize(self, waveforms: Sequence[Waveform]) -> list[Transcript]:
        """Recognise utterances of any lengths; the results come in their order.

        Args:
            waveforms: each (samples,) float32 at `sample_rate`, checked with `check_waveform`. What is too short for
                one encoder frame gives an empty text.
        """
        tokens: list[list[Token]] = [[] for _ in waveforms]
        audible = [index for index, waveform in enumerate(waveforms) if self._is_audible(len(waveform))]
        lengths = [len(waveforms[index]) + self._tail for index in audible]
        plan = plan_batches(lengths, self.limits, sample_rate=self.sample_rate, min_samples=self._min_samples)

        def run(batch: Batch) -> None:
            indices = [audible[position] for position in batch.indices]
            for index, found in zip(
                indices, self._run([waveforms[i] for i in indices], batch.num_samples), strict=True
            ):
                tokens[index] = found

        self._crew.map(run, plan)
        return [self._transcript(found, len(waveform)) for found, waveform in zip(tokens, waveforms, strict=True)]

    def warm_up(self, max_audio_s: float = 30.0) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        longest = int(min(max_audio_s, self.max_audio_s) * self.sample_rate)
        lengths = [longest]
        while lengths[-1] >= 2 * self._min_samples:
            lengths.append(lengths[-1] // 2)
        for length in reversed(lengths):
            padded = bucket_length(max(length, self._min_samples), self.limits.steps_per_octave)
            silence = [np.zeros(padded, dtype=np.float32)]
            # As many calls at once as there will be later, so that the memory for all of them is found now.
            self._crew.map(partial(self._run, padded=padded), [silence] * self._crew.size)

    def _is_audible(self, num_samples: int) -> bool:
        """Is there a whole feature frame of audio, and with the tail a frame of the encoder?"""
        manifest = self.bundle.manifest
        return num_samples >= manifest.features.frame_length and num_samples + self._tail >= self._min_samples

    def _run(self, waveforms: Sequence[Waveform], padded: int) -> list[list[Token]]:
        block = np.zeros((len(waveforms), padded), dtype=np.float32)
        for row, waveform in zip(block, waveforms, strict=True):
            row[: len(waveform)] = waveform
        num_samples = np.array([min(len(waveform) + self._tail, padded) for waveform in waveforms], dtype=np.int64)
        inputs: dict[str, Array] = {"waveform": block, "num_samples": num_samples}
        log_probs, num_frames = self._graph(inputs, ("log_probs", "num_frames"))
        return ctc_greedy(log_probs, num_frames, self.bundle.manifest.vocabulary.blank_id)

    def _transcript(self, tokens: list[Token], num_samples: int) -> Transcript:
        builder = TranscriptBuilder(self.bundle.vocabulary, self.bundle.manifest.frame_s)
        builder.add(tokens)
        return builder.transcript(num_samples / self.sample_rate)
