"""What the process of a model does before anything else; Triton's stub imports this file in place of its own module.

    triton_python_backend_utils.py  ->  this file  ->  OWN, beside it: Triton's own module of that name

The stub embeds a Python that looks for modules where it stands, and takes text and names of files for ASCII, whatever
the locale is. It is started in an empty folder, and imports this file first (`tritone.server.installation`).
"""

import codecs
import locale
import os
import sys
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

UTILS = "triton_python_backend_utils"
OWN = "triton_python_backend_utils_of_triton.py"
STANDING = "TRITONE_STANDING"  # environment variable: where the server was started, which relative paths mean
UTF8_LOCALES = ("", "C.UTF-8", "C.utf8", "en_US.UTF-8")  # that of the environment first


def prepare() -> None:
    """Take the folder in which one stands out of the search for modules, go back there, and read text as UTF-8."""
    sys.path[:] = [each for each in sys.path if os.path.isabs(each)]
    if standing := os.environ.pop(STANDING, ""):
        with suppress(OSError):  # it was deleted; the empty folder will do
            os.chdir(standing)
            os.environ["PWD"] = standing
    for name in UTF8_LOCALES:
        with suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, name)
            if locale.nl_langinfo(locale.CODESET) == "UTF-8":
                break
    for stream in (sys.stdout, sys.stderr):
        # By lines, so that the log has what a function printed when it did, and what one that crashed had printed.
        stream.reconfigure(encoding="utf-8", errors="surrogateescape", line_buffering=True)  # type: ignore[union-attr]
    if sys.getfilesystemencoding() == "ascii":
        codecs.register_error("surrogateescape", _as_utf8)


def _as_utf8(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write as UTF-8 what ASCII cannot write: the encoding of paths is fixed once Python runs, its errors are not."""
    if isinstance(error, UnicodeEncodeError) and error.encoding == "ascii":
        return error.object[error.start : error.end].encode("utf-8", "surrogateescape"), error.end
    return _before(error)


_before = codecs.lookup_error("surrogateescape")


def _take_the_place() -> None:
    """Become Triton's own module."""
    spec = spec_from_file_location(UTILS, Path(__file__).with_name(OWN))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[UTILS] = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == UTILS:
    prepare()
    _take_the_place()
