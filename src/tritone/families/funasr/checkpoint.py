"""Reading the files of a model's folder: `config.yaml`, `model.pt`, `am.mvn` and the tokens.

All of them are untrusted: checkpoints are loaded with `weights_only=True`, YAML with the safe loader, and sizes are
checked.
"""

import json
import re
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import load_checkpoint, state_of, without
from tritone.families.export.settings import read_bytes
from tritone.paths import plain_text

CONFIG, WEIGHTS, STATISTICS = "config.yaml", "model.pt", "am.mvn"
PIECES, TOKENS, WORDS = "*.bpe.model", "tokens.json", "seg_dict"
MAX_TOKENS_BYTES = 64 * 2**20
MAX_STATISTICS_BYTES = 16 * 2**20
TRAINING = (
    *("criterion_att.*", "ctc.ctc_loss.*", "specaug.*"),
    *("predictor.upsample_cnn.*", "predictor.blstm.*", "predictor.cif_output2.*"),  # of times alone
    *("attn_loss.*", "criterion_seaco.*", "seaco_decoder.embed.*"),
)
VECTOR = r"[^\[<]*\[([^\]]*)\]"  # numbers in brackets, behind the sizes of a part and what it learns at


def read_statistics(path: Path, size: int) -> tuple[Tensor, Tensor]:
    """Read am.mvn: what is added to a row of features, and what it is then multiplied with, (size,) float32 both.

    Raises:
        ExportError: it is missing or no such file, or of rows of another size.
    """
    try:
        text = plain_text(read_bytes(path, "statistics", MAX_STATISTICS_BYTES))
    except UnicodeDecodeError as error:
        raise ExportError(f"statistics {path} are not UTF-8 text ({error.reason} at byte {error.start})") from error
    return _vector(text, "AddShift", size, path), _vector(text, "Rescale", size, path)


def _vector(text: str, part: str, size: int, path: Path) -> Tensor:
    found = re.search(rf"<{part}>[^<]*<LearnRateCoef>{VECTOR}", text)
    if found is None:
        raise ExportError(f"statistics {path} have no <{part}>, which am.mvn of FunASR has")
    try:
        values = torch.tensor([float(each) for each in found[1].split()], dtype=torch.float32)
    except ValueError as error:
        raise ExportError(f"statistics {path}: <{part}> holds something that is no number ({error})") from error
    if len(values) != size or not bool(torch.isfinite(values).all()):
        raise ExportError(
            f"statistics {path}: <{part}> has {len(values)} numbers, the features have {size}, all of them finite; are "
            "both of the same model?"
        )
    return values


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the tensors of model.pt, see `state_of`.

    Raises:
        ExportError: no such file, not a checkpoint, or it holds more than plain tensors.
    """
    plain = "Save the bare state dict: torch.save(model.state_dict(), path)."
    return without(state_of(load_checkpoint(path, plain=plain, usual=WEIGHTS), path).tensors, TRAINING)


def read_tokens(path: Path) -> list[str]:
    """Read tokens.json, a list of tokens in the order of their ids.

    Raises:
        ExportError: it is missing or something else, or a token cannot be written or is there twice.
    """
    try:
        tokens = json.loads(read_bytes(path, "tokens", MAX_TOKENS_BYTES))
    except (ValueError, RecursionError) as error:
        raise ExportError(f"tokens {path} are not JSON that can be read: {str(error)[:200]}") from error
    if not isinstance(tokens, list) or not tokens or not all(isinstance(each, str) for each in tokens):
        raise ExportError(f"tokens {path} should be a list of texts, in the order of their ids")
    twice = sorted(token for token, count in Counter(tokens).items() if count > 1)
    if bad := twice or [each for each in tokens if not each or any(sign.isspace() for sign in each)]:
        raise ExportError(f"tokens {path}: {bad[:5]} cannot be told apart or written; each must be there once")
    return tokens


def one_file(folder: Path, pattern: str, what: str) -> Path:
    """The only file of a pattern.

    Raises:
        ExportError: there is none, or several.
    """
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(each.name for each in found[:5]) or "none"
        raise ExportError(f"{folder} should have one file {pattern}, {what}; it has {names}")
    return found[0]
