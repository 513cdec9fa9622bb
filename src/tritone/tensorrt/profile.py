"""The sizes that an engine is built for: rows and seconds of audio, and what they mean for each input of each graph.

    "1x2s", "16x7s", "64x16.7s"       ->  Profile
    Profile, manifest, role, inputs   ->  {"waveform": Range((1, 32000), (16, 112000), (64, 267200)), ...}

An engine takes what lies between the least and the most, and its kernels are chosen for the usual sizes.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritone.bundle.manifest import ALL_LEFT, LEFT_FRAMES, Manifest, Role
from tritone.kinds.whisper.part import WhisperPart

SIZE = re.compile(r"(?P<rows>\d{1,6})(?:x(?P<number>\d{1,6}(?:\.\d{1,6})?)(?P<unit>ms|s))?")
FORM = "rows x seconds, like 16x7s or 1x500ms"
MAX_ROWS = 4096
MAX_SECONDS = 3600.0

BEAM = 10  # hypotheses of an utterance that decoders are asked about, and usual contexts of a transducer's
MAX_HYPOTHESES = 16
# Memory is taken for the largest sizes of all inputs at once. Numbers of one row are vocab_size times as many.
MAX_LOGITS = 2**26  # of a decoder or a joiner, 256 MB in float32
MAX_CONTEXTS = 4096  # rows of a predictor or joiner; graphs split calls of more
MAX_HISTORY_S = 60.0  # of flexible streams that see all of the past
PHRASES = (1, 50, 1001)  # hotwords of a request, and what stands for none of them
FEATURE_ALIGNMENT = 64  # frames; some families pad their features to a multiple

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Size:
    """One call: `rows` of `seconds` of audio, or of a stream's step, which has a length of its own, if that is None."""

    rows: int
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Read "16x7s", "1x500ms", or "16" for streams.

        Raises:
            ValueError: it is none of these, or a size that nobody has.
        """
        match = SIZE.fullmatch(text.strip().lower().replace(" ", ""))
        if match is None:
            raise ValueError(f"a size is {FORM}, or rows alone for streams, like 16; got {text!r}")
        seconds = None
        if match["number"] is not None:
            seconds = float(match["number"]) / (1000 if match["unit"] == "ms" else 1)
        size = cls(int(match["rows"]), seconds)
        if not 1 <= size.rows <= MAX_ROWS or (seconds is not None and not 0 < seconds <= MAX_SECONDS):
            raise ValueError(f"a size has 1 to {MAX_ROWS} rows of up to {MAX_SECONDS:g} seconds, got {text!r}")
        return size

    def __str__(self) -> str:
        return str(self.rows) if self.seconds is None else f"{self.rows}x{self.seconds:g}s"


@dataclass(frozen=True)
class Range:
    """The sizes of one input: the least, the usual and the most of each axis."""

    least: Shape
    usual: Shape
    most: Shape


@dataclass(frozen=True)
class Profile:
    """One range of sizes."""

    least: Size
    usual: Size
    most: Size

    def __post_init__(self) -> None:
        """Refuse sizes in the wrong order.

        Raises:
            ValueError: they are, or a lone request would not fit.
        """
        sizes = (self.least, self.usual, self.most)
        if self.least.rows != 1:
            raise ValueError(
                f"the least size is {self.least}, but it must have one row: a lone request is a batch of one, and an "
                f"engine refuses what is below its least. Say 1{str(self.least)[len(str(self.least.rows)) :]}."
            )
        if len({size.seconds is None for size in sizes}) > 1:
            raise ValueError(f"either all sizes of a profile have seconds or none has; got {self}")
        for one, other in ((self.least, self.usual), (self.usual, self.most)):
            if one.rows > other.rows or (one.seconds or 0) > (other.seconds or 0):
                raise ValueError(f"sizes must not fall from the least over the usual to the most; got {self}")

    @classmethod
    def parse(cls, least: str, usual: str, most: str) -> "Profile":
        """Read the three sizes; see `Size.parse`."""
        return cls(Size.parse(least), Size.parse(usual), Size.parse(most))

    def __str__(self) -> str:
        return f"{self.least} {self.usual} {self.most}"

    def ranges(self, manifest: Manifest, role: Role, inputs: Mapping[str, Sequence[int | None]]) -> dict[str, Range]:
        """What this means for a graph.

        Args:
            role: of the graph.
            inputs: the axes of each of its inputs, None for those that vary.

        Raises:
            ValueError: whole utterances need seconds, and the sizes have none; or an axis varies whose meaning is not
                known.
        """
        known = _Sizes(manifest, role, self)
        found = {}
        for name, axes in inputs.items():
            sizes = [
                (axis, axis, axis) if axis is not None else known.axis(name, place) for place, axis in enumerate(axes)
            ]
            least, usual, most = zip(*sizes, strict=True) if sizes else ((), (), ())
            found[name] = Range(least, usual, most)
        return found


def check_together(profiles: Sequence[Profile]) -> None:
    """Make sure that profiles of one engine take all audio between the shortest and the longest.

    Raises:
        ValueError: there is none, or some audio would fit no profile.
    """
    if not profiles:
        raise ValueError("an engine needs at least one profile of sizes")
    spans = sorted((each.least.seconds or 0.0, each.most.seconds or 0.0) for each in profiles)
    longest = spans[0][1]
    for least, most in spans:
        if least > longest:
            raise ValueError(
                f"audio between {longest:g} s and {least:g} s would fit no profile of {'; '.join(map(str, profiles))}. "
                f"Let one begin with 1x{longest:g}s"
            )
        longest = max(longest, most)


DEFAULT = Profile.parse("1x0.5s", "8x7s", "32x30s")
"""For those who say nothing: utterances of up to half a minute."""


class _Sizes:
    """The axes of one graph for one profile, as (least, usual, most)."""

    def __init__(self, manifest: Manifest, role: Role, profile: Profile) -> None:
        self._manifest = manifest
        self._role = role
        self._profile = profile

    def axis(self, name: str, place: int) -> tuple[int, int, int]:
        """The sizes of an axis that varies."""
        role, state = self._role, self._states().get(name)
        if (special := self._manifest.find(WhisperPart)) is not None and role == "decoder":
            return self._of_whisper(name, place, special.text_context)
        if role in ("predictor", "joiner") and place == 0:
            return self._contexts()
        if (found := self._of_paraformer(name, place)) is not None:
            return found
        if place == 0:
            return self._decoder_rows() if role == "decoder" else self._rows()
        if name == "waveform" and place == 1:
            return self._window() if role == "streaming_encoder" else self._samples()
        if state is not None and state[place - 1] == LEFT_FRAMES:
            return self._left_frames()
        if name == "features" and place == 1:
            return self._feature_frames()
        if role == "decoder" and (name, place) == ("encoder_out", 1):
            return 1, *self._frames()[1:]
        if role == "decoder" and name in ("hypotheses", "num_tokens") and place == 1:
            return 1, BEAM, MAX_HYPOTHESES
        if role == "decoder" and (name, place) == ("hypotheses", 2):
            return 1, *self._tokens()
        raise ValueError(
            f"axis {place} of input {name} of the {role} varies, and it is not known with what; export the bundle again"
        )

    def _of_whisper(self, name: str, place: int, context: int) -> tuple[int, int, int]:
        """Sizes of Whisper's decoder, which reads a prompt without a past and then a token at a time."""
        if place == 0:
            return self._rows()
        return (0, context // 4, context) if name.startswith("self_") else (1, 1, context)

    def _of_paraformer(self, name: str, place: int) -> tuple[int, int, int] | None:
        """Sizes of a Paraformer's decoder, which writes all tokens at once, and of its part for hotwords."""
        if self._role == "hotword_encoder":
            return PHRASES
        if name == "phrase_vectors":
            return 1, PHRASES[1], PHRASES[2] * self._rows()[2]  # each row may have its own
        if (name, place) == ("listed", 1):
            return PHRASES
        if (name, place) == ("places", 0) or (name.startswith("token_") and name != "token_sums" and place == 1):
            return 1, *self._tokens()
        if (name, place) == ("token_sums", 1):
            return 1, *self._frames()[1:]
        writes = self._manifest.kind == "paraformer" and self._role in ("decoder", "hotword_decoder")
        return self._rows() if writes and place == 0 else None

    def _states(self) -> dict[str, tuple[int | str, ...]]:
        streaming = self._manifest.streaming
        return {state.name: state.shape for state in streaming.states} if streaming else {}

    def _rows(self) -> tuple[int, int, int]:
        return self._profile.least.rows, self._profile.usual.rows, self._profile.most.rows

    def _seconds(self) -> tuple[float, float, float]:
        sizes = (self._profile.least, self._profile.usual, self._profile.most)
        if any(size.seconds is None for size in sizes):
            raise ValueError(
                f"the {self._role} takes whole utterances, so sizes need seconds: {FORM}; got {self._profile}"
            )
        least, usual, most = (size.seconds or 0.0 for size in sizes)
        return least, usual, most

    def _samples(self) -> tuple[int, int, int]:
        """Sizes of waveforms as pipelines pad them; no minimum may be below what the graph takes."""
        manifest = self._manifest
        shortest, tail = manifest.encoder.min_samples, manifest.encoder.tail_samples
        least, usual, most = (round(each * manifest.sample_rate) for each in self._seconds())
        if manifest.encoder.equal_lengths:  # nothing may be padded to reach the least
            least = shortest
        return max(least, shortest), max(usual + tail, shortest), max(most + tail, shortest)

    def _feature_frames(self) -> tuple[int, int, int]:
        """Any way of counting frames lies between these."""
        features = self._manifest.features
        least, usual, most = self._samples()
        longest = -(-(most // features.frame_shift + 1) // FEATURE_ALIGNMENT) * FEATURE_ALIGNMENT
        return (
            max(1, (least - features.frame_length) // features.frame_shift + 1),
            min(longest, usual // features.frame_shift + 1),
            longest,
        )

    def _frames(self) -> tuple[int, int, int]:
        """Least, usual and largest number of encoder frames."""
        frame = self._manifest.features.frame_shift * self._manifest.encoder.subsampling_rate
        least, usual, most = (-(-each // frame) + 1 for each in self._samples())
        return least, usual, most

    def _tokens(self) -> tuple[int, int]:
        """Tokens of a hypothesis: never more than frames, usually a quarter of them."""
        _, usual, most = self._frames()
        return -(-usual // 4), most

    def _decoder_rows(self) -> tuple[int, int, int]:
        _, tokens = self._tokens()
        room = MAX_LOGITS // (MAX_HYPOTHESES * (tokens + 1) * self._manifest.tokens.size)
        return self._within(room, self._profile.usual.rows, self._profile.most.rows)

    def _contexts(self) -> tuple[int, int, int]:
        room = min(MAX_CONTEXTS, MAX_LOGITS // self._manifest.tokens.size)
        return self._within(room, self._profile.usual.rows * BEAM, MAX_CONTEXTS)

    @staticmethod
    def _within(room: int, usual: int, most: int) -> tuple[int, int, int]:
        most = max(1, min(most, room))
        return 1, min(usual, most), most

    def _window(self) -> tuple[int, int, int]:
        """Samples of a step of a flexible graph: an engine is for the chunk size of the bundle alone."""
        assert self._manifest.streaming is not None
        window = self._manifest.streaming.window_samples
        return window, window, window

    def _left_frames(self) -> tuple[int, int, int]:
        streaming = self._manifest.streaming
        assert streaming is not None
        if streaming.left_chunks != ALL_LEFT:
            frames = streaming.chunk_size * streaming.left_chunks
            return frames, frames, frames
        chunks = max(1, int(MAX_HISTORY_S / self._manifest.frame_s) // streaming.chunk_size)
        longest = chunks * streaming.chunk_size
        return streaming.chunk_size, max(streaming.chunk_size, math.ceil(longest / 4)), longest
