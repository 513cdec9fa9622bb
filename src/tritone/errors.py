"""The errors Tritone raises, sorted by what the caller can do about them.

    InputError      fix the input       AudioError (AudioTooLongError, AudioFormatError), StreamError
    RetryError      try again later     ServerUnreachableError (StreamLostError, RegionLostError), ServerTimeoutError,
                                        ServerBusyError, StorageUnreachableError
    OperatorError   mend the set-up     BundleError, ExportError, LanguageModelError, ServerSetupError,
                                        StorageError, MissingDependencyError

A message says what was seen, what is needed and what to do next, in the user's units. Wrong arguments to a
function stay `ValueError`.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

HINT = re.compile(r"[Tt]ry (?:it )?again in (?P<seconds>\d{1,6}(?:\.\d{1,6})?) ?s\b")


def hinted_s(message: str) -> float | None:
    """When to try again, in seconds, by an error's message: that of a model in Triton has no other place for it."""
    found = HINT.search(message)
    return float(found["seconds"]) if found else None


MODEL_FAILED = "the model failed at this request; the server's log says why. Tell who runs the server."
"""What a served model says of an error that is no client's affair."""


class TritoneError(Exception):
    """Base of every error that Tritone raises on purpose."""

    def saying(self, message: str) -> "Self":
        """An error like this one with another message: of its class, and with all that it tells, such as a hint."""
        other = type(self)(message)
        other.__dict__.update(self.__dict__)
        return other


class InputError(TritoneError):
    """The request itself is wrong; sending it again unchanged fails again."""


class AudioError(InputError):
    """A waveform or an audio file cannot be used as it is."""


class AudioTooLongError(AudioError):
    """Audio is longer than a model takes at once."""


class AudioFormatError(AudioError):
    """What was given is no audio, or of a format that nothing here decodes; the message names those that are."""


class StreamError(InputError):
    """A chunk does not fit the stream it claims to belong to."""


class RetryError(TritoneError):
    """The request is fine; the service could not take it now."""

    retry_after_s: float | None = None  # when the server expects to have room, in seconds from now, if it says so


class ServerUnreachableError(RetryError):
    """Nobody answers at the given address, or the connection broke."""


class RegionLostError(ServerUnreachableError):
    """A server that was started again does not know a client's shared memory any more; the next request tells it."""


class StreamLostError(ServerUnreachableError):
    """A stream ended with its server or its model's process; it can be sent again from the start, as a new one."""


class ServerTimeoutError(RetryError):
    """The server took longer than the caller was willing to wait."""


class ServerBusyError(RetryError):
    """The server refused the request because its queue or its stream slots are full."""


class StorageUnreachableError(RetryError):
    """Storage elsewhere (s3://... and the like) does not answer, or the connection broke too often."""


class OperatorError(TritoneError):
    """The installation, the model folder or the server set-up needs a person."""


class BundleError(OperatorError):
    """A bundle is missing, damaged, or newer than this version of Tritone."""


class ExportError(OperatorError):
    """A checkpoint, its config or its side files cannot be turned into a bundle."""


class LanguageModelError(OperatorError):
    """A language model or a hotwords file is missing, damaged, or does not fit the model that it shall help."""


class ServerSetupError(OperatorError):
    """tritonserver, or something that it needs, is missing or unfit."""


class StorageError(OperatorError):
    """A folder in storage is missing, damaged or cannot be accessed, or a listing of it cannot be used."""


class ServerAnswerError(OperatorError):
    """A server answered what its protocol does not have, or nothing."""


class MissingDependencyError(OperatorError):
    """An optional package is needed for this; the message names the `pip install`."""
