"""SenseVoice-Small: an encoder whose first four frames are questions, and a CTC head that answers them too.

    rows of features, numbers of language and text form  ->  log-probabilities of frames, and four tokens

Behind the questions for language, emotion, event and the form of the text come the rows of the audio. The best token
of each of the first four frames is its answer. Source: funasr/models/sense_voice/model.py.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.funasr.config import SENSE_VOICE_TAGS, ModelConfig
from tritone.families.funasr.layers import EncoderInTwo, fitted
from tritone.families.layers.ctc import token_log_probs

# The numbers of vectors in `embed`, which are constants of upstream's code.
LANGUAGES = {"auto": 0, "zh": 3, "en": 4, "yue": 7, "ja": 11, "ko": 12, "nospeech": 13}
USUAL_LANGUAGE = "auto"
PLAIN, WRITTEN = 15, 14  # numbers as words and no punctuation; figures and punctuation
EVENT, EMOTION = 1, 2  # one behind the other
NUM_PROMPTS = 16
NUM_TAGS = len(SENSE_VOICE_TAGS)


class CtcHead(nn.Module):
    """Projection to the vocabulary and log-softmax; upstream's `ctc.ctc_lo`."""

    fused = False

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.ctc_lo = nn.Linear(width, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return token_log_probs(self.ctc_lo, x, fused=self.fused)


class SenseVoice(nn.Module):
    """The network of model.pt; `state_dict()` has upstream's names."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(NUM_PROMPTS, config.encoder.input_size)
        self.encoder = EncoderInTwo(config.encoder)
        self.ctc = CtcHead(config.encoder.output_size, vocab_size)

    @classmethod
    def of(cls, config: ModelConfig, state: Mapping[str, Tensor], vocab_size: int, origin: str) -> "SenseVoice":
        """Make a network of the tensors of model.pt.

        Raises:
            ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
        """
        return fitted(lambda: cls(config, vocab_size), state, origin, f"its config and {vocab_size} tokens")

    def forward(self, rows: Tensor, frames: Tensor, language: Tensor, use_itn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode rows (batch, frames, size) float32, of which each has `frames` (batch,) int64.

        Args:
            language: (batch,) int64, of `LANGUAGES`.
            use_itn: (batch,) int64, `PLAIN` or `WRITTEN`.

        Returns:
            Log-probabilities (batch, frames, tokens) float32, the answers to the questions (batch, 4) int64, tokens in
            the order of `SENSE_VOICE_TAGS`, and the encoder's result (batch, frames, width).
        """
        fixed = self.embed.weight[EVENT : EMOTION + 1].expand(rows.shape[0], -1, -1)
        questions = [self.embed(language.unsqueeze(1)), fixed, self.embed(use_itn.unsqueeze(1))]
        rows = torch.cat([*(as_dtype(each, torch.float32) for each in questions), rows], dim=1)
        encoded = self.encoder(rows, frames + NUM_TAGS)
        log_probs = self.ctc(encoded)
        tags = log_probs[:, :NUM_TAGS].argmax(dim=2)
        return log_probs[:, NUM_TAGS:], tags, encoded[:, NUM_TAGS:]
