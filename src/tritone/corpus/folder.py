"""A folder of recordings, with their texts beside them.

    chapter/1-2-0000.flac, chapter/1-2.trans.txt  ->  Utterance("chapter/1-2-0000.flac", ..., "what is said")

References are where LibriSpeech has them: in files `*.trans.txt` of the same folder, a line `id words` for each
recording that is called like the id. Or each in a file of its own, `1-2-0000.txt` beside `1-2-0000.flac`.
"""

from collections.abc import Iterator
from pathlib import Path

from tritone.audio.files import find_audio
from tritone.corpus.list_file import entries, read_list, read_text
from tritone.corpus.utterance import Listed, Place, Utterance, Whole, check_text
from tritone.errors import InputError

LISTS = "*.trans.txt"


def folder_utterances(folder: Path) -> Iterator[Listed]:
    """The recordings in a folder and the folders below it, in the order of `find_audio`; their paths name them.

    Raises:
        AudioError: there are none.
        InputError: a reference cannot be read, or comes twice.
    """
    known: dict[Path, dict[str, str]] = {}
    for path in find_audio(folder):
        home = path.parent
        if home not in known:
            known[home] = _references(home)
        text = known[home].get(path.stem)
        if text is None and (own := path.with_suffix(".txt")).is_file():
            text = check_text(Whole(own, 1), read_text(own))
        name = path.relative_to(folder)
        yield Whole(path, 1), Utterance(name.as_posix(), name, text)


def _references(folder: Path) -> dict[str, str]:
    found: dict[str, tuple[Place, str]] = {}
    for path in sorted(path for path in folder.glob(LISTS) if path.is_file()):  # a pipe might never end
        for place, name, words in entries(path, read_list(path)):
            if name in found:
                raise InputError(f"{place}: {name!r} has a reference already, {found[name][0]}")
            found[name] = place, check_text(place, words)
    return {name: words for name, (_, words) in found.items()}
