"""From a folder of transformers or sherpa-onnx with a Moonshine model to a bundle.

config.json, preprocessor_config.json, tokenizer.json, model.safetensors, or the four graphs of sherpa-onnx
    ->  manifest.json, tokens.txt, and for each runtime and precision the graphs of encoder and decoder
"""

from typing import Any

import torch

from tritone.bundle.manifest import Encoder, Features, Vocabulary
from tritone.families.export.attended import AttendedModel, filled
from tritone.families.export.frame import write_bundle
from tritone.families.export.report import ExportReport
from tritone.families.moonshine.checkpoint import SAMPLE_RATE, read_checkpoint
from tritone.families.moonshine.model import MIN_SAMPLES, SUBSAMPLING, Network, num_frames_of
from tritone.families.moonshine.options import MoonshineOptions
from tritone.families.moonshine.sherpa_onnx import check_network, find_moonshine, read_files
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart

LONGEST_S = 30  # of what the models were trained with


def export_moonshine(**choices: Any) -> ExportReport:
    """Export a Moonshine.

    Args:
        choices: the fields of `MoonshineOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = MoonshineOptions(**choices)
    options.progress("reading the model")
    return write_bundle(MoonshineModel(options), options)


class MoonshineModel(AttendedModel):
    """A trained Moonshine."""

    family = "moonshine"
    sample_rate = SAMPLE_RATE
    min_samples = MIN_SAMPLES

    def __init__(self, options: MoonshineOptions) -> None:
        """Read the folder of the options."""
        files = find_moonshine(options.folder)
        found = read_checkpoint(options.folder) if files is None else read_files(files)
        self.tokens, self.sources, self.choices = found.tokens, found.sources, {}
        self.sizes = found.sizes
        with torch.device("meta"):  # the sizes are a stranger's; memory is taken by tensors that are there
            network = Network(found.sizes)
        self.network = filled(network, dict(found.state), str(options.folder))
        if files is not None:
            check_network(files, self.network)
        form, longest = found.sizes.decoder, LONGEST_S * SAMPLE_RATE
        self.special = EncoderDecoderPart(
            text_context=form.context,
            layers=form.layers,
            heads=form.heads,
            head_dim=form.head_dim,
            eot=found.end,
            max_samples=longest,
            max_positions=int(num_frames_of(torch.tensor(longest))),
            form=form.activation,
            prompt=(found.start,),
            silent=found.silent,
            tokens_per_second=found.tokens_per_second,
        )

    def manifest(self) -> dict[str, Any]:
        return {
            "kind": "encoder-decoder",
            "features": Features.of_samples(),
            "encoder": Encoder(
                subsampling_rate=SUBSAMPLING, output_dim=self.sizes.decoder.width, min_samples=MIN_SAMPLES
            ),
            "vocabulary": Vocabulary(
                size=self.sizes.decoder.vocab, units="bpe", blank_id=self.special.eot, eos_id=self.special.eot
            ),
            "encoder_decoder": self.special,
        }
