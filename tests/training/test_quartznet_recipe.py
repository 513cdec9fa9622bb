"""QuartzNet's recipe on invented recordings: the network is the exported one, and the export reads its files."""

import copy
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the recipe trains with torch: pip install '.[export]'")
yaml = pytest.importorskip("yaml", reason="the recipe reads YAML: pip install '.[export]'")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from families.jasper_models import random_state  # noqa: E402
from short_runs import run_on_tones  # noqa: E402
from training import dataset, quartznet, recipe, systems, train, units  # noqa: E402
from tritone.families.jasper.checkpoint import check_state, read_config, read_weights  # noqa: E402
from tritone.families.jasper.config import parse_config  # noqa: E402
from tritone.families.jasper.graphs import OfflineGraph  # noqa: E402
from tritone.families.jasper.model import Network  # noqa: E402
from tritone.families.layers.log_mel import LogMel  # noqa: E402

BLOCKS = [
    {"filters": 8, "repeat": 1, "kernel_size": 5, "stride": 2, "residual": False, "separable": True},
    {"filters": 12, "repeat": 2, "kernel_size": 3, "residual": True, "separable": True, "dropout": 0.1},
    {"filters": 16, "repeat": 1, "kernel_size": 1, "residual": False},
]


def tiny_settings() -> dict[str, Any]:
    """demo-quartznet.yaml with a network small enough for a test."""
    values = yaml.safe_load((ROOT / "training/demo-quartznet.yaml").read_text(encoding="utf-8"))
    values["quartznet"]["encoder"]["blocks"] = copy.deepcopy(BLOCKS)
    values["quartznet"]["decoder"]["in_feats"] = 16
    values["recipe"].update(batch_seconds=4, warmup_steps=2)
    values["recipe"]["augment"] = {"room_count": 2}
    return values


def tiny_system() -> quartznet.QuartzNetSystem:
    settings = tiny_settings()
    system = systems.make_system(settings, recipe.read_recipe(settings["recipe"]), torch.device("cpu"))
    assert isinstance(system, quartznet.QuartzNetSystem)
    return system


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run of three steps on tones that stand for words."""
    return run_on_tones(tmp_path_factory.mktemp("quartznet"), tiny_settings())


def test_a_short_run_has_finite_losses_and_scores_the_dev_set(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["skipped"] == 0 and math.isfinite(row["loss"]) and row["loss"] > 0 for row in steps)
    assert list(rows[-1]["dev"]["an4"]) == ["full"]


def test_the_export_reads_what_a_run_leaves(trained: Path) -> None:
    config, weights = read_config(trained / "quartznet.yaml"), read_weights(trained / "quartznet.pt")
    check_state(config, weights.state, "quartznet.pt")
    assert weights.averaged
    assert config.labels[:2] == (" ", "a")
    assert config.blank_id == 28
    assert config.subsampling_rate == 2
    assert weights.state["encoder.layers.1.mconv.0.weight"].dtype == torch.float16
    assert weights.state["encoder.layers.1.mconv.2.running_var"].dtype == torch.float32


def test_running_statistics_of_norms_are_averaged_as_weights_are(trained: Path) -> None:
    state = read_weights(trained / "quartznet.pt").state
    last = torch.load(trained / "resume.pt", weights_only=True)["model"]
    name = "encoder.layers.0.mconv.2.running_mean"
    assert not torch.equal(state[name], torch.zeros_like(state[name]))
    assert not torch.equal(state[name], last[name])


def test_the_network_in_training_is_the_exported_one() -> None:
    settings = parse_config(tiny_settings())
    state = random_state(settings)
    network = quartznet.QuartzNet(settings, [0.0, 0.1, 0.0]).eval()
    network.load_state_dict(state, strict=False)
    front_end, waveform = LogMel(settings.features), 0.1 * torch.randn(2, 9000, generator=torch.Generator())
    num_samples = torch.tensor([9000, 5003])
    exported = OfflineGraph(Network.of(settings, state), front_end)
    with torch.no_grad():
        wanted, counts, _ = exported(waveform, num_samples)
        log_probs, frames = network(*front_end(waveform, num_samples))
    assert frames.tolist() == counts.tolist() == [29, 16]
    for row, count in enumerate(counts.tolist()):
        torch.testing.assert_close(log_probs[row, :count], wanted[row, :count], atol=1e-3, rtol=0)


def test_a_network_that_the_recipe_cannot_train_is_refused() -> None:
    for change in ({"normalization": "layer"}, {"groups": 2}, {"residual_dense": True, "repeat": 2}):
        settings = tiny_settings()
        settings["quartznet"]["encoder"]["blocks"][1].update(change)
        if "residual_dense" in change:
            settings["quartznet"]["encoder"]["blocks"].insert(2, settings["quartznet"]["encoder"]["blocks"][1])
        config = parse_config(settings)
        with pytest.raises(ValueError, match="normalization batch, without residual_dense and groups"):
            quartznet.QuartzNet(config, [0.0] * len(config.blocks))


def test_an_output_folder_can_be_started_from(trained: Path) -> None:
    system = tiny_system()
    system.load(trained)
    state, own = read_weights(trained / "quartznet.pt").state, system.model.state_dict()
    assert all(torch.equal(own[name], value.float()) for name, value in state.items() if value.dim())


def test_the_weights_with_the_fewest_errors_on_the_set_that_decides_are_kept(tmp_path: Path) -> None:
    system = tiny_system()
    maker: Any = None  # saving makes no batches
    trainer = train.Trainer(system, system.recipe, maker, tmp_path, torch.device("cpu"), grad_clip=1.0)
    bias, kept = "decoder.layers.0.bias", []
    for number, errors in enumerate([7, 5, 6, 5]):
        trainer.averaged[bias].fill_(number)
        trainer.save({"an4": {"full": {"errors": errors}}, "fsdd": {"full": {"errors": -errors}}})
        kept.append(int(read_weights(tmp_path / "quartznet.pt").state[bias][0]))
    assert kept == [0, 1, 1, 3]


def test_labels_are_characters_and_the_blank_is_behind_them() -> None:
    labels = units.Labels([" ", "a", "b", "'"])
    assert labels.encode("ab b'?") == [1, 2, 0, 2, 3]
    assert labels.decode([0, 1, 2, 0, 0, 2, 3, 0]) == "ab b'"
    assert (len(labels), labels.blank_id) == (5, 4)
    assert labels.frames_needed("abba") == 5


def test_utterances_last_as_long_as_a_network_of_this_subsampling_needs() -> None:
    # One more encoder frame is `subsampling` frames of 160 samples.
    assert dataset.samples_for(11, 2) - dataset.samples_for(10, 2) == 2 * 160
    assert dataset.samples_for(11) - dataset.samples_for(10) == 4 * 160
    network = quartznet.QuartzNet(parse_config(tiny_settings()), [0.0] * 3)
    frames = LogMel(parse_config(tiny_settings()).features).num_frames(torch.tensor([dataset.samples_for(10, 2)]))
    assert network.count(frames).item() >= 10


def test_the_demos_network_is_small() -> None:
    settings = yaml.safe_load((ROOT / "training/demo-quartznet.yaml").read_text(encoding="utf-8"))
    system = systems.make_system(settings, recipe.read_recipe(settings["recipe"]), torch.device("cpu"))
    assert 1.0e6 < sum(parameter.numel() for parameter in system.model.parameters()) < 1.4e6
