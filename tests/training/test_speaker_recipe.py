"""The speaker model's recipe on invented voices: it learns, the files it leaves, and that nothing hangs on chance."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipe trains with torch: pip install '.[export]'")
yaml = pytest.importorskip("yaml", reason="the recipe reads YAML: pip install '.[export]'")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from training.augment import AugmentConfig  # noqa: E402
from training.speaker import distortion, losses, material, pack, score, sweep, tapes, train, verification  # noqa: E402
from training.speaker.recipe import read_speaker_recipe  # noqa: E402

from training import augment, corpus, prepare  # noqa: E402
from tritone.bundle import Bundle  # noqa: E402
from tritone.families.wespeaker.checkpoint import load_network, read_config  # noqa: E402
from tritone.families.wespeaker.config import parse_config  # noqa: E402

SHARES = {"an4": 0.5, "librispeech_mini": 0.25, "speech_commands": 0.25}
TINY = ["--model", "ResNet18", "--model-args", "feat_dim=80", "embed_dim=16", "m_channels=4", "pooling_func=TSTP"]
TINY += ["two_emb_layer=false"]
QUIET = "augment={room_count: 2, noise: 0.2, floor: 0.2, narrow_band: 0.0, room: 0.2}"
STEPS, LOG_STEPS = 12, 4


def voice(rng: np.random.Generator, seconds: float, pitch: float, peak: float) -> np.ndarray:
    """A buzz of `pitch` Hz through one resonance at `peak` Hz."""
    time = np.arange(int(seconds * 16000)) / 16000
    harmonics = np.arange(1, 20) * pitch * rng.uniform(0.98, 1.02)
    heights = 0.1 / (1.0 + ((harmonics - peak) / 200.0) ** 2)
    phases = rng.uniform(0, 2 * np.pi, len(harmonics))
    waves = np.sin(2 * np.pi * np.outer(time, harmonics) + phases) @ heights
    return waves + 0.001 * rng.standard_normal(len(time))


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of twelve voices and some noise, as `training.speaker.pack` writes them."""
    rng = np.random.default_rng(0)
    rows = []
    for name, speakers, count, seconds in [
        ("an4", 6, 4, 1.2),
        ("librispeech_mini", 2, 1, 3.0),
        ("speech_commands", 4, 3, 0.8),
        ("noise", 1, 1, 4.0),
    ]:
        for speaker in range(speakers):
            pitch, peak = rng.uniform(90, 260), rng.uniform(400, 3000)
            for number in range(count):
                samples = rng.standard_normal(16000 * 4) * 0.01 if name == "noise" else voice(rng, seconds, pitch, peak)
                recording = corpus.Recording(
                    id=f"{name}/{speaker}-{number}",
                    text="",
                    speaker=f"{name}/{speaker}",
                    corpus=name,
                    split="dev" if name == "an4" and speaker >= 3 else "train",
                    sample_rate=16000,
                    num_samples=len(samples),
                    gender="f",
                )
                rows.append((recording, corpus.encode_opus(samples, 16000, 32_000)))
    path = tmp_path_factory.mktemp("voices") / "part-1.zip"
    corpus.write_pack(path, rows)
    return path


@pytest.fixture(scope="module")
def decoded(voices: Path) -> material.Material:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment, "POOL_SECONDS", 4)
        return material.make_material([voices], rooms=2)


def test_material_comes_back_from_its_file(decoded: material.Material, tmp_path: Path) -> None:
    decoded.save(tmp_path / "material.pt")
    loaded = material.Material.load(tmp_path / "material.pt")
    assert loaded.recordings == decoded.recordings
    assert torch.equal(loaded.samples, decoded.samples)
    slow, fast = decoded.speeds.index(0.9), decoded.speeds.index(1.1)
    assert len(decoded.waveform(0, slow)) == pytest.approx(len(decoded.waveform(0)) / 0.9, abs=2)
    assert len(decoded.waveform(0, fast)) == pytest.approx(len(decoded.waveform(0)) / 1.1, abs=2)


def test_a_crop_holds_one_speaker_at_one_speed(decoded: material.Material) -> None:
    """Each recording is replaced by a constant that says whose it is; a crop must not mix two."""
    samples = decoded.samples.clone()
    chosen = list(range(len(decoded.recordings)))
    names = sorted({recording.speaker for recording in decoded.recordings})
    for speed in range(len(decoded.speeds)):
        for index in chosen:
            begin, end = decoded.bounds[speed, index].tolist()
            samples[begin:end] = 1 + speed * len(names) + names.index(decoded.recordings[index].speaker)
    marked = replace(decoded, samples=samples)
    made = tapes.Tapes(marked, chosen, shares=SHARES, speed_share=0.4, device=torch.device("cpu"))
    waveforms, labels = made.draw(10, 30_000)
    assert torch.equal(waveforms * 32768.0, (labels + 1.0).unsqueeze(1).expand_as(waveforms))
    assert len(labels[:10].unique()) == 10
    assert torch.equal(labels[:10], labels[10:])


def test_distortion_keeps_lengths_and_levels_within_bounds(decoded: material.Material) -> None:
    torch.manual_seed(1)
    made = distortion.Distortion(decoded, AugmentConfig(narrow_band=1.0, mu_law=1.0, floor=1.0), torch.device("cpu"))
    clean = decoded.samples[:64_000].view(4, 16_000).float() / 32768.0
    distorted = made(clean)
    assert distorted.shape == clean.shape
    assert bool(torch.isfinite(distorted).all())
    assert float(distorted.abs().max()) <= 1.0
    # What a distorter with nothing to do gives is what came in.
    silent = AugmentConfig(room=0, noise=0, gain_range_db=(0, 0), quiet=0, floor=0, narrow_band=0)
    same = distortion.Distortion(decoded, silent, torch.device("cpu"))(clean)
    assert torch.allclose(same, clean, atol=1 / 32768)


def test_the_margin_widens_the_angle_to_the_own_class() -> None:
    made = losses.MarginSoftmax(2, 2, scale=1.0)
    with torch.no_grad():
        made.weight.copy_(torch.eye(2))
    angle = torch.tensor(0.3)
    row = torch.stack([torch.cos(angle), torch.sin(angle)]).unsqueeze(0) * 7.0
    loss, correct = made(row, torch.tensor([0]), 0.2)
    own, other = np.cos(0.5), np.sin(0.3)
    assert loss.item() == pytest.approx(-own + np.log(np.exp(own) + np.exp(other)), abs=1e-5)
    assert correct.item() == 1.0


def test_equal_error_rate_of_what_can_be_counted_by_hand() -> None:
    targets = np.array([True, True, True, True, False, False, False, False])
    assert verification.equal_error_rate(np.array([5.0, 6, 7, 8, 1, 2, 3, 4]), targets) == 0.0
    # One target below one other pair: either way a quarter is wrong.
    assert verification.equal_error_rate(np.array([4.0, 6, 7, 8, 1, 2, 3, 5]), targets) == pytest.approx(0.25)
    assert verification.equal_error_rate(np.array([1.0, 2, 3, 4, 5, 6, 7, 8]), targets) == 1.0


def test_test_speakers_are_not_packed_and_parts_stay_within_their_size() -> None:
    assert pack.speaker_split("an4", {"split": "test", "speaker": "x"}) is None
    assert pack.speaker_split("librispeech_mini", {"split": "test", "speaker": "x"}) is None
    assert pack.speaker_split("speech_commands", {"split": "test", "speaker": "x"}) is None
    assert pack.speaker_split("librispeech_mini", {"split": "dev", "speaker": "x"}) == "dev"
    item = corpus.Recording(id="a", text="", speaker="a", corpus="an4", split="train", sample_rate=16000, num_samples=1)
    cut = list(pack.parts(iter([(item, bytes(400))] * 5), 1200))
    assert [len(part) for part in cut] == [2, 2, 1]


@pytest.fixture(scope="module")
def trained(decoded: material.Material, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same short run twice. The clock has no part in it: all shares of the schedule are by steps."""
    file = tmp_path_factory.mktemp("material") / "material.pt"
    decoded.save(file)
    folders = []
    for name in ("first", "second"):
        folder = tmp_path_factory.mktemp("speaker") / name
        command = ["--material", str(file), "--output", str(folder), "--steps", str(STEPS), "--minutes", "1e9"]
        command += ["--device", "cpu", *TINY, "--set", "classes=8", "warmup_steps=3", "crop_s=[0.5,0.5]"]
        # Voices at their own speed, of which there are nine to train with, and a loss that means the same throughout.
        command += ["peak_lr=0.01", "ema_decay=0.7", "scale=15", "speed_share=1.0", "margin=0", QUIET]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "LOG_STEPS", LOG_STEPS)
            train.main(command)
        folders.append(folder)
    return folders


@pytest.mark.slow
def test_a_short_run_learns_to_tell_voices_apart(trained: list[Path]) -> None:
    rows = [json.loads(line) for line in (trained[0] / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]
    *means, last = rows
    assert [row["step"] for row in means] == list(range(LOG_STEPS, STEPS + 1, LOG_STEPS))
    assert means[-1]["softmax"] < 0.6 * means[0]["softmax"]
    assert means[-1]["correct"] > 2 / 9
    # Of three voices that training has not seen; chance is a half.
    assert 0.0 <= last["dev_eer"]["an4"] < 50.0


@pytest.mark.slow
def test_the_run_is_reproducible(trained: list[Path]) -> None:
    first, second = (torch.load(folder / "avg_model.pt", weights_only=True) for folder in trained)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_checkpoint_is_in_upstreams_form(trained: list[Path]) -> None:
    config = read_config(trained[0] / "config.yaml")
    network, ignored = load_network(config, trained[0] / "avg_model.pt")
    assert ignored == ()
    assert network.embed_dim == 16
    assert np.load(trained[0] / "mean_vec.npy").shape == (config.network.embed_dim,)
    assert "recipe" not in yaml.safe_load((trained[0] / "config.yaml").read_text(encoding="utf-8"))


def test_the_shipped_bundle_was_made_with_the_settings_that_are_kept() -> None:
    kept = ROOT / "training" / "demo-speaker" / "config.yaml"
    settings = yaml.safe_load((ROOT / "training" / "demo-speaker.yaml").read_text(encoding="utf-8"))
    assert read_speaker_recipe(settings.pop("recipe")).crop_s == (1.0, 3.0)
    assert yaml.safe_load(kept.read_text(encoding="utf-8")) == settings
    sources = Bundle.open("demo-speaker").manifest.provenance.sources
    assert sources["config"] == hashlib.sha256(kept.read_bytes()).hexdigest()


def test_rounds_of_runs_have_settings_that_exist() -> None:
    base = yaml.safe_load((ROOT / "training" / "demo-speaker.yaml").read_text(encoding="utf-8"))
    rounds = yaml.safe_load((ROOT / "training" / "speaker" / "sweep.yaml").read_text(encoding="utf-8"))
    for plan in (plan for plan in rounds.values() if "runs" in plan):
        for changes in plan["runs"].values():
            settings = sweep.merged(base, changes)
            read_speaker_recipe(settings["recipe"])
            parse_config(settings)


def test_development_pairs_are_scored_as_in_training(decoded: material.Material) -> None:
    held = [place for place, each in enumerate(decoded.recordings) if each.corpus == "an4" and each.split == "dev"]
    made = verification.dev_sets(decoded, held)["an4"]
    trials = score.development_set(made)
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((len(made.waveforms), 5)).astype(np.float32)

    class Listener:
        def embed(self, waveforms: list[np.ndarray], sample_rate: int) -> np.ndarray:
            assert len(waveforms[0]) == len(made.waveforms[0])
            return vectors

    scores = score.score(Listener(), trials)  # type: ignore[arg-type]
    assert scores.values == pytest.approx(verification.cosines(vectors, made.pairs), abs=1e-5)
    rate = verification.equal_error_rate(scores.values, made.targets)
    assert score.pooled([scores]).eer().value == pytest.approx(rate, abs=1e-9)
    [_, _, row] = score.table({"an4": trials}, {"an4": scores}, threshold=0.0)
    assert f"| {100 * rate:.2f} " in row


@pytest.mark.parametrize(
    "source", [each for each in pack.SOURCES if each.folder != "noise"], ids=lambda each: each.folder
)
def test_no_speaker_of_a_test_part_is_in_a_pack(source: prepare.Source) -> None:
    listed = ROOT.parent / "shared" / "data" / source.folder / "metadata.jsonl"
    if not listed.exists():
        pytest.skip(f"recordings are not here: {listed.parent.name} is missing beside the repository")
    rows = [json.loads(line) for line in listed.read_text(encoding="utf-8").splitlines()]
    packed = {row["speaker"] for row in rows if pack.speaker_split(source.folder, row) is not None}
    tested = {row["speaker"] for row in rows if row["split"] == "test"}
    assert packed
    assert tested
    assert not packed & tested
