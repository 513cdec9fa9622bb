"""Weights of stateless transducers that are read off their programs compute what the programs compute."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tritone.families.export.joiner import JoinerGraph  # noqa: E402  # needs torch
from tritone.families.icefall.graphs import PredictorGraph  # noqa: E402
from tritone.families.icefall.stateless import Joiner, PredictorConfig, StatelessPredictor  # noqa: E402
from tritone.runtime.files.program import read_program  # noqa: E402
from tritone.search.device.greedy import GreedyLoop  # noqa: E402
from tritone.search.device.kernels_for import VOCAB, fault_of_whole, whole_for  # noqa: E402
from tritone.search.device.modified_beam import ModifiedBeamLoop  # noqa: E402
from tritone.search.device.stateless import StatelessWeights, stateless_weights  # noqa: E402

CPU = torch.device("cpu")


def programs(folder: Path, half: Any = torch.bfloat16, **sizes: Any) -> list[Any]:
    """Predictor and joiner as they are exported."""
    torch.manual_seed(3)
    config = PredictorConfig(vocab_size=11, width=16, joiner_dim=8, **sizes)
    joiner = Joiner(5, config)
    found = []
    for graph in (PredictorGraph(StatelessPredictor(config), joiner), JoinerGraph(joiner)):
        path = folder / f"{type(graph).__name__}.pt2"
        rows = torch.export.Dim("rows", min=1, max=4096)
        exported = torch.export.export(
            graph.to(half).eval(), tuple(graph.example().values()), dynamic_shapes=[{0: rows}] * len(graph.example())
        )
        torch.export.save(exported, path)
        found.append(read_program(path, CPU))
    return found


@pytest.mark.parametrize(("context", "group"), [(2, 1), (2, 4), (3, 1)])
def test_the_weights_compute_what_the_programs_do(tmp_path: Path, context: int, group: int) -> None:
    predictor, joiner = programs(tmp_path, context_size=context, group_size=group)
    weights = stateless_weights(predictor, joiner)
    assert weights is not None
    contexts = torch.randint(-1, 11, (40, context))
    vectors = predictor.function(list(predictor.outputs))(contexts)[0]
    torch.testing.assert_close(weights.predict(contexts), vectors, atol=0.02, rtol=0.02)  # a sum in another order
    frames = torch.randn(40, 8)
    torch.testing.assert_close(
        weights.join(frames, vectors), joiner.function(list(joiner.outputs))(frames, vectors)[0], atol=0.02, rtol=0.02
    )


def test_other_networks_are_left_to_searches_in_steps(tmp_path: Path) -> None:
    predictor, joiner = programs(tmp_path)
    assert stateless_weights(joiner, predictor) is None
    assert stateless_weights(predictor, None) is None
    assert stateless_weights(*programs(tmp_path, torch.float32)) is None
    assert stateless_weights(*programs(tmp_path, context_size=1)) is None  # without a convolution


def stand_in(penalty: float) -> Any:
    """A module as `whole`, whose searches are those in steps; their blanks are `penalty` less likely."""

    def as_whole(loop: Callable[..., Any]) -> Callable[..., Any]:
        def make(weights: StatelessWeights, **options: Any) -> Any:
            def join(*inputs: Any) -> Any:
                return weights.join(*inputs) - penalty * torch.eye(VOCAB)[0]

            return loop(predict=weights.predict, join=join, vocab_size=VOCAB, penalised=True, **options)

        return make

    return SimpleNamespace(WholeGreedy=as_whole(GreedyLoop), WholeBeam=as_whole(ModifiedBeamLoop))


def test_kernels_of_whole_searches_that_find_something_else_are_not_used() -> None:
    assert fault_of_whole(stand_in(0.0), "cpu") == ""
    assert fault_of_whole(stand_in(30.0), "cpu") == "its kernel for greedy search finds other tokens than torch"
    assert whole_for("cpu") is None
