"""The page of Whisper on a GPU is what its figures give."""

import json
from pathlib import Path

from benchmarks.whisper_gpu_page import page

FOLDER = Path(__file__).parents[2] / "docs" / "performance" / "whisper"


def test_the_page_is_made_of_the_figures_beside_it() -> None:
    runs = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
    assert runs
    assert page(runs) == (FOLDER / "README.md").read_text(encoding="utf-8")
