"""Transducers with an LSTM on a GPU say what they say on the CPU, from archive to text. Skipped where there is none."""

import pytest

from families.conftest import babble
from families.nemo_models import Exported, export_tdt
from shared import Shared
from tritone.bundle.bundle import Bundle
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.transducer import HELD_OUT
from tritone.search.options import SearchOptions

pytestmark = pytest.mark.gpu

LENGTHS = (9000, 20000, 1200, 15321, 30000, 500, 16000)


@pytest.fixture(scope="module")
def bundle(shared: Shared) -> Bundle:
    exported: Exported = shared("nemo-tdt-torch", lambda folder: export_tdt(folder, runtimes=("torch",)))
    return Bundle.open(exported.bundle)


@pytest.mark.parametrize(
    "options", [SearchOptions(), SearchOptions(blank_penalty=3.0, max_symbols=5)], ids=["usual", "penalised"]
)
def test_utterances_are_searched_as_on_the_cpu(bundle: Bundle, options: SearchOptions) -> None:
    heard = []
    for device in ("cpu", "cuda"):
        search = SearchSettings(options=options)
        pipeline = open_offline(bundle, placement=Placement(device=device), search=search)
        pipeline.warm_up(1.0)
        assert (HELD_OUT in pipeline.searching.outputs([options])) == (device == "cuda")
        for _ in range(2 if device == "cuda" else 1):  # recorded, and once more
            found = pipeline.recognize([babble(length, seed=length) for length in LENGTHS])
        heard.append([[(each.text, each.start_s, each.end_s) for each in row.tokens] for row in found])
    assert sum(one != other for one, other in zip(*heard, strict=True)) <= 1
    assert sum(map(len, heard[0])) > 5
