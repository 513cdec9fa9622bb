"""How well a speaker model did on trials that its makers held back: `evaluation.json` beside the manifest.

    bundle folder  ->  Evaluation, or None where nobody wrote one

The figures stand in this file alone; the model card and `tritone demo` show what it has. A set has the fields that
`tritone score --json` prints, and a name; whatever else is there is for people.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tritone.bundle.bundle import EVALUATION
from tritone.errors import BundleError

MAX_BYTES = 1 << 20
Text = Annotated[str, Field(min_length=1, max_length=256)]
Rate = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ErrorRate(_Part):
    """A fraction, and its confidence interval where there is one."""

    value: Rate
    interval: tuple[Rate, Rate] | None = None


class TrialSet(_Part):
    """One list of trials: its file, how many pairs are of one speaker and how many of two, and the equal error rate.

    `level`: of confidence intervals.
    """

    name: Text
    trials: Text
    targets: Annotated[int, Field(ge=1, le=10**12)]
    nontargets: Annotated[int, Field(ge=1, le=10**12)]
    eer: ErrorRate
    level: Rate = 0.95


class Evaluation(_Part):
    """All sets, and the command that measured them."""

    measured_by: Text
    sets: Annotated[tuple[TrialSet, ...], Field(min_length=1, max_length=64)]


def read_evaluation(folder: Path) -> Evaluation | None:
    """Read what is known of a bundle.

    Raises:
        BundleError: the file is too large, cannot be read, or says something else.
    """
    path = folder / EVALUATION
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise BundleError(f"{path} is larger than {MAX_BYTES} bytes, which no list of figures needs")
    try:
        return Evaluation.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BundleError(f"{path}: {where}: {first['msg']}. Measure the model again, or remove the file.") from error
