"""From a folder of transformers with a Canary model to a bundle.

FOLDER  ->  manifest.json, tokens.txt, and for each runtime and precision the graphs of encoder and decoder
"""

from typing import Any

import torch

from tritone.bundle.manifest import Encoder, Vocabulary
from tritone.errors import ExportError
from tritone.families.export.attended import AttendedModel
from tritone.families.layers.log_mel import features_of
from tritone.families.nemo.canary import Checkpoint
from tritone.families.nemo.options import NemoOptions
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart

LONGEST_S = 40  # of what the models were trained with


class CanaryModel(AttendedModel):
    """A trained Canary."""

    family = "nemo"

    def __init__(self, options: NemoOptions, found: Checkpoint) -> None:
        """Take the options and what was read."""
        if options.stages or options.streaming or options.head or options.chunk_size or options.tail_padding_ms:
            raise ExportError(
                "--stages, --streaming, --chunk-size, --head and --tail-padding-ms are not for Canary, which has a "
                "graph for audio and one for text; leave them out"
            )
        self.found, self.network, self.tokens = found, found.network, list(found.tokens)
        self.sources, self.choices = found.sources, {}
        front_end, form = found.network.encoder.front_end, found.decoder
        self.sample_rate, self.min_samples = found.features.sample_rate, front_end.min_samples
        longest = LONGEST_S * self.sample_rate
        frames = found.network.encoder.conformer.num_frames(front_end.num_frames(torch.tensor([longest])))
        self.special = EncoderDecoderPart(
            text_context=form.context,
            layers=form.layers,
            heads=form.heads,
            head_dim=form.head_dim,
            eot=found.end,
            max_samples=longest,
            max_positions=int(frames),
            form=form.activation,
            prompt=found.prompt,
            silent=found.silent,
            languages=dict(found.languages),
            language=found.language,
            task=found.task,
            punctuation=found.punctuation,
            word_times=found.word_times,
            times=found.times,
            time_precision=found.features.frame_shift * found.encoder.factor / self.sample_rate,
        )

    def manifest(self) -> dict[str, Any]:
        return {
            "kind": "encoder-decoder",
            "features": features_of(self.found.features),
            "encoder": Encoder(
                subsampling_rate=self.found.encoder.factor,
                output_dim=self.found.decoder.width,
                min_samples=self.min_samples,
            ),
            "vocabulary": Vocabulary(
                size=self.found.decoder.vocab, units="bpe", blank_id=self.special.eot, eos_id=self.special.eot
            ),
            "encoder_decoder": self.special,
        }
