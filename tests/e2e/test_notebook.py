"""`notebooks/quickstart.ipynb` runs as it is, and what is kept of it is what it said when it ran.

The other notebook needs TensorFlow, and is looked at as it was kept.
"""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tritone.corpus.clips import read_clips

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
LARGEST = 400 * 1024  # bytes; more is slow to show in a browser
SPOKEN = read_clips()[0].reference  # the clip that is looked at


def printed(notebook: Any) -> str:
    return "\n".join(each["text"] for each in outputs(notebook) if each["output_type"] == "stream")


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def check_what_it_says(notebook: Any) -> None:
    """It served every clip with its text, streamed one, showed pictures, and ended its server well."""
    said = printed(notebook).splitlines()
    assert said[-1] == "server ended with code 0"
    served = [re.fullmatch(r"(clip-\d+)\.flac +[\d.]+ s +\d+ ms  (.*)", line) for line in said]
    assert {match[1]: match[2] for match in served if match} == {clip.name: clip.reference for clip in read_clips()}
    assert SPOKEN in said  # in process
    (final,) = (line.removeprefix(" final").strip() for line in said if line.startswith(" final"))
    assert final == SPOKEN
    partials = [match[1] for match in (re.fullmatch(r" +[\d.]+ s  (\D*)", line) for line in said) if match]
    assert partials
    assert all(SPOKEN.startswith(text) for text in partials)
    pictures = [each for each in outputs(notebook) if "image/png" in each.get("data", {})]
    assert len(pictures) == 2
    assert all(each["metadata"]["image/png"]["alt"] for each in pictures), "a text for those who do not see them"
    assert not [each for each in outputs(notebook) if each["output_type"] == "error" or each.get("name") == "stderr"]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_goes_from_a_checkpoint_to_served_text_and_leaves_nothing_running(notebook: Any) -> None:
    before = set(psutil.Process().children(recursive=True))
    # Any folder of the repository will do.
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "tests")}})
    try:
        client.execute()
    finally:
        left = set(psutil.Process().children(recursive=True)) - before
        _, alive = psutil.wait_procs(left, timeout=60)
        for process in alive:
            process.kill()
    assert alive == []
    check_what_it_says(notebook)


def test_what_is_kept_of_the_notebook_is_whole_small_and_of_no_machine(notebook: Any) -> None:
    check_what_it_says(notebook)
    check_what_is_kept(NOTEBOOK)


def test_the_notebook_of_two_frameworks_served_both() -> None:
    kept = check_what_is_kept(NOTEBOOK.with_name("from-frameworks.ipynb"))
    right = dict(re.findall(r"^(\S+): .* (\d+) of 200 right$", printed(kept), re.MULTILINE))
    assert right.keys() == {"shapes-torch", "shapes-tensorflow"}
    assert all(int(each) > 190 for each in right.values())
    pictures = [each["metadata"]["image/png"] for each in outputs(kept) if "image/png" in each.get("data", {})]
    assert len(pictures) == 2
    assert all(each["alt"] for each in pictures)


def check_what_is_kept(path: Path) -> Any:
    """Every cell ran once, in order, without an error; it is small, and tells nothing of the machine."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [each for each in outputs(notebook) if each["output_type"] == "error" or each.get("name") == "stderr"]
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) <= LARGEST
    for each in json.loads(text)["cells"]:
        for output in each.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
        assert not re.search(r"(?<![.\w])/(home|root|tmp|work|Users)\b", json.dumps(each))
    return notebook
