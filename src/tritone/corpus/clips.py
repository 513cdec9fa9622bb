"""Audio clips with their reference text: a folder with `clips.jsonl`, one {"file", "text", "voice"} a line.

A line may also have "speaker", where one person is behind several voices: synthesisers differ, and speak with the
recordings of one man.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tritone.errors import OperatorError

SHIPPED_CLIPS = Path(__file__).parent / "clips"  # letters, digits, dates, commands
SHIPPED_SENTENCES = Path(__file__).parent / "sentences"  # ordinary English
INDEX = "clips.jsonl"


@dataclass(frozen=True)
class Clip:
    """One recording: its file, what is said in it, and whose voice it is. No `speaker`: nobody else has that voice."""

    path: Path
    reference: str
    voice: str
    speaker: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    def same_speaker(self, other: "Clip") -> bool:
        return (self.speaker or self.voice) == (other.speaker or other.voice)


def read_clips(folder: Path = SHIPPED_CLIPS) -> list[Clip]:
    """Read the clips of a folder, in the order of its index.

    Raises:
        OperatorError: no index, a line of it is damaged, or a file that it names is missing.
    """
    index = folder / INDEX
    if not index.is_file():
        raise OperatorError(f"{folder} has no {INDEX}, so there are no clips to transcribe. Reinstall tritone.")
    clips = []
    for number, line in enumerate(index.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            clip = Clip(folder / fields["file"], fields["text"], fields["voice"], fields.get("speaker", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise OperatorError(f'{index}:{number}: expected {{"file", "text", "voice"}}, got {line!r}') from error
        if not clip.path.is_file():
            raise OperatorError(f"{index}:{number} names {clip.path.name}, which is missing. Reinstall tritone.")
        clips.append(clip)
    if not clips:
        raise OperatorError(f"{index} lists no clips. Reinstall tritone.")
    return clips
