"""The graph of a SenseVoice bundle, as a module ready for export; contract in docs/design.md.

OfflineGraph     waveform, num_samples, language, use_itn  ->  log_probs, num_frames, encoder_out, tags

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.families.export.exportable import Run, UtteranceGraph
from tritone.families.export.precision import as_dtype
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.model import LANGUAGES, PLAIN, USUAL_LANGUAGE, WRITTEN, SenseVoice


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), and num_samples, language and use_itn (batch,) int64."""

    def __init__(self, network: SenseVoice, front_end: StackedFbank) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = network.config.front_end.sample_rate

    @property
    def min_samples(self) -> int:
        return self.front_end.min_samples

    @property
    def outputs(self) -> list[str]:
        return [*super().outputs, "tags"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return super().dynamic | {"language": {0: "batch"}, "use_itn": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        return dict(_asked(super().example()))

    def trials(self) -> Iterator[Run]:
        for run in super().trials():
            yield Run([_asked(step) for step in run.steps])

    def hearing(self, waveform: Waveform) -> Run | None:
        run = super().hearing(waveform)
        return None if run is None else Run([_asked(step) for step in run.steps])

    def acoustic(self, features: Tensor, num_samples: Tensor, *asked: Tensor) -> tuple[Tensor, ...]:
        frames = self.front_end.num_frames(num_samples)
        log_probs, tags, encoded = self.network(features, frames, *asked)
        return log_probs, frames, as_dtype(encoded, torch.float32), tags

    def forward(self, waveform: Tensor, num_samples: Tensor, *asked: Tensor) -> tuple[Tensor, ...]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples, *asked)


def _asked(step: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Inputs with languages and forms of text, the usual ones in the first row and others in the next."""
    rows = torch.arange(len(step["waveform"]))
    languages = torch.tensor([LANGUAGES[USUAL_LANGUAGE], *LANGUAGES.values()])
    forms = torch.tensor([PLAIN, WRITTEN])
    return {**step, "language": languages[rows % len(languages)], "use_itn": forms[rows % 2]}
