"""Which form of a kernel is the fastest for some sizes on this machine, kept from one start to the next.

    forms = Forms(file, FORMS)
    forms.get("3 x 20 x 1500")      # None: nobody has compared them for this size
    forms.keep("3 x 20 x 1500", FORMS[2])

Comparing takes all forms to be compiled, or at least loaded; one that is known is the only one.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

Form = TypeVar("Form")


class Forms(Generic[Form]):
    """The choices in one file; those of other forms, as of an earlier version, do not count."""

    def __init__(self, file: Path | None, forms: Sequence[Form]) -> None:
        """Take the file, None keeping nothing beyond this process, and all forms that there are."""
        self._file, self._forms = file, forms
        self._chosen: dict[str, int] = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or not ours
            found = json.loads(file.read_bytes()) if file is not None else {}
            if found["forms"] == repr(forms):
                chosen = {str(size): int(index) for size, index in found["chosen"].items()}
                self._chosen = {size: index for size, index in chosen.items() if 0 <= index < len(forms)}

    @classmethod
    def beside_kernels(cls, forms: Sequence[Form]) -> "Forms[Form]":
        """Those beside the code of the kernels, where the environment says where Triton's compiler keeps it."""
        folder = os.environ.get("TRITON_CACHE_DIR")
        return cls(Path(folder, "tritone-forms.json") if folder else None, forms)

    def get(self, size: str) -> Form | None:
        """The form that was kept for a size."""
        index = self._chosen.get(size)
        return None if index is None else self._forms[index]

    def keep(self, size: str, form: Form) -> None:
        """Keep a form for a size; where the file cannot be written, for this process alone."""
        self._chosen[size] = self._forms.index(form)
        if self._file is not None:
            beside = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            with suppress(OSError):
                beside.write_text(json.dumps({"forms": repr(self._forms), "chosen": self._chosen}), encoding="utf-8")
                beside.replace(self._file)
