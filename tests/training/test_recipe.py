"""The training recipe on invented recordings: a few steps, the files it leaves, and that nothing hangs on chance."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipe trains with torch: pip install '.[export]'")
yaml = pytest.importorskip("yaml", reason="the recipe reads YAML: pip install '.[export]'")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from training import align, augment, corpus, dataset, grammar, masking, network, prepare, scoring, train, units  # noqa: E402
from tritone.families.layers.fbank import Fbank  # noqa: E402

TINY = {
    "output_size": 16,
    "attention_heads": 2,
    "linear_units": 32,
    "num_blocks": 2,
    "cnn_module_kernel": 5,
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones in noise that stand for words, in the corpora that the recipe knows."""
    rng = np.random.default_rng(0)
    rows = []
    for name, words, count, rate in [
        ("an4", ["a b", "enter six", "yes"], 8, 16000),
        ("fsdd", ["one", "two"], 8, 8000),
        ("speech_commands", ["zero", "stop"], 8, 16000),
        ("librispeech_mini", ["the old man's chair"], 4, 16000),
        ("noise", [""], 2, 16000),
    ]:
        for number in range(count):
            seconds = 11.0 if name == "noise" and number == 0 else rng.uniform(0.6, 1.4)
            time = np.arange(int(seconds * rate)) / rate
            tone = 0.3 * np.sin(2 * np.pi * rng.uniform(200, 2000) * time) + 0.01 * rng.standard_normal(len(time))
            recording = corpus.Recording(
                id=f"{name}/{number}",
                text=words[number % len(words)],
                speaker=f"{name}/{number % 2}",
                corpus=name,
                split="dev" if number >= 6 and name in ("an4", "fsdd") else "train",
                sample_rate=rate,
                num_samples=len(time),
            )
            rows.append((recording, corpus.encode_opus(tone, rate, 24_000)))
    path = tmp_path_factory.mktemp("pack") / "tiny.zip"
    assert corpus.write_pack(path, rows) == len(rows)
    return path


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """demo.yaml with a network small enough for a test."""
    values = yaml.safe_load((ROOT / "training/demo.yaml").read_text(encoding="utf-8"))
    values["encoder_conf"].update(TINY)
    values["decoder_conf"].update(attention_heads=2, linear_units=32)
    values["recipe"].update(batch_seconds=6, warmup_steps=2)
    values["recipe"]["augment"] = {"room_count": 3}
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def run(pack: Path, config: Path, output: Path, *extra: str) -> list[dict]:
    arguments = [
        "--packs",
        str(pack),
        "--config",
        str(config),
        "--output",
        str(output),
        "--device",
        "cpu",
        "--minutes",
        "5",
    ]
    train.main([*arguments, *extra])
    return [json.loads(line) for line in (output / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def trained(pack: Path, config_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "LOG_STEPS", 1)
        run(pack, config_file, output, "--steps", "4")
    return output


def test_a_short_run_has_finite_losses_and_scores_the_dev_sets(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    for row in steps:
        assert row["skipped"] == 0
        assert math.isfinite(row["loss"])
        assert row["loss"] > 0
    assert set(rows[-1]["dev"]) == {"an4", "fsdd", "fsdd_strings"}


def test_the_output_has_wenets_files_with_wenets_names(trained: Path) -> None:
    assert {"final.pt", "train.yaml", "units.txt", "global_cmvn"} <= {path.name for path in trained.iterdir()}
    state = torch.load(trained / "final.pt", weights_only=True)
    wanted = {
        "encoder.global_cmvn.mean": (80,),
        "encoder.embed.conv.0.weight": (16, 1, 3, 3),
        "encoder.embed.out.0.weight": (16, 16 * 19),
        "encoder.encoders.1.self_attn.pos_bias_u": (2, 8),
        "encoder.encoders.1.conv_module.depthwise_conv.weight": (16, 1, 5),
        "encoder.after_norm.weight": (16,),
        "ctc.ctc_lo.weight": (len(units.Units()), 16),
        "decoder.left_decoder.decoders.1.src_attn.linear_q.weight": (16, 16),
        "decoder.right_decoder.decoders.0.feed_forward.w_1.weight": (32, 16),
        "decoder.right_decoder.embed.0.weight": (len(units.Units()), 16),
    }
    assert {name: tuple(state[name].shape) for name in wanted} == wanted
    settings = yaml.safe_load((trained / "train.yaml").read_text(encoding="utf-8"))
    lines = (trained / "units.txt").read_text(encoding="utf-8").splitlines()
    assert settings["input_dim"] == 80
    assert settings["output_dim"] == len(lines)
    assert lines[:4] == ["<blank> 0", "<unk> 1", "<sos/eos> 2", "▁ 3"]


def test_the_checkpoint_holds_the_statistics_of_global_cmvn(trained: Path) -> None:
    statistics = json.loads((trained / "global_cmvn").read_text(encoding="utf-8"))
    state = torch.load(trained / "final.pt", weights_only=True)
    mean = np.array(statistics["mean_stat"]) / statistics["frame_num"]
    deviation = np.sqrt(np.array(statistics["var_stat"]) / statistics["frame_num"] - mean**2)
    np.testing.assert_allclose(state["encoder.global_cmvn.mean"].numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(1.0 / state["encoder.global_cmvn.istd"].numpy(), deviation, rtol=1e-5)


@pytest.mark.slow
def test_a_stopped_run_resumes_where_it_was(
    pack: Path, config_file: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "LOG_STEPS", 1)
    rows = run(pack, config_file, tmp_path, "--steps", "2", "--resume", str(trained / "resume.pt"))
    assert [row["step"] for row in rows if "loss" in row] == [5, 6]


@pytest.mark.slow
def test_a_second_round_starts_from_the_weights_of_the_first(
    pack: Path, config_file: Path, trained: Path, tmp_path: Path
) -> None:
    run(pack, config_file, tmp_path, "--steps", "1", "--init", str(trained), "--set", "peak_lr=0.0", "final_lr=0.0")
    before, after = (torch.load(folder / "final.pt", weights_only=True) for folder in (trained, tmp_path))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "global_cmvn").read_text(encoding="utf-8") == (trained / "global_cmvn").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_a_run_aligns_the_an4_training_recordings_and_the_next_one_trains_on_their_words(
    pack: Path, config_file: Path, trained: Path, tmp_path: Path
) -> None:
    arguments = [str(trained), "--packs", str(pack), "--output", str(tmp_path / "words.json")]
    with pytest.raises(SystemExit, match="none of the 6 AN4 training recordings"):
        align.main([*arguments, "--max-deficit", "0.001"])  # four steps teach nothing
    align.main([*arguments, "--max-deficit", "1000", "--keep-all"])
    found = json.loads((tmp_path / "words.json").read_text(encoding="utf-8"))
    assert {name: [word for word, _, _ in rows] for name, rows in found.items()} == {
        f"an4/{number}": [["a", "b"], ["enter", "six"], ["yes"]][number % 3] for number in range(6)
    }
    rows = run(pack, config_file, tmp_path, "--steps", "1", "--words", str(tmp_path / "words.json"))
    assert "dev" in rows[-1]


def test_a_misspelt_recipe_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="peak_lrr"):
        train.read_recipe({"peak_lrr": 1})


@pytest.fixture(scope="module")
def maker(pack: Path) -> dataset.BatchMaker:
    loaded = corpus.Corpus.load([pack], {"train"})
    augmenter = augment.Augmenter(loaded, augment.AugmentConfig(room_count=3), seed=0)
    planner = dataset.Planner(loaded, dataset.MixtureConfig(), augmenter, units.Units())
    return dataset.BatchMaker(planner, batch_seconds=20, seed=7)


def test_a_batch_depends_on_its_number_alone(maker: dataset.BatchMaker) -> None:
    first, other, again = maker[11], maker[12], maker[11]
    assert all(torch.equal(left, right) for left, right in zip(first, again, strict=True))
    assert first.waveforms.shape != other.waveforms.shape or not torch.equal(first.waveforms, other.waveforms)


def test_every_planned_utterance_has_frames_enough_for_ctc(maker: dataset.BatchMaker) -> None:
    rng = np.random.default_rng(3)
    for _ in range(500):
        plan = maker.planner.draw(rng)
        assert dataset.encoder_frames(plan.num_samples) > units.Units().frames_needed(plan.text)


def test_a_rendered_utterance_is_as_long_as_planned_and_silence_has_no_text(maker: dataset.BatchMaker) -> None:
    rng = np.random.default_rng(4)
    plans = [maker.planner.draw(rng) for _ in range(120)]
    for plan in plans:
        waveform = maker.planner.render(plan)
        assert waveform.dtype == np.int16
        assert len(waveform) == plan.num_samples
    assert any(plan.text == "" and not plan.pieces for plan in plans)
    assert all(plan.text for plan in plans if any(maker.planner.corpus.recordings[i].text for i, _, _ in plan.pieces))


def test_encoder_frames_agree_with_the_network(trained: Path) -> None:
    model = network.Network(yaml.safe_load((trained / "train.yaml").read_text(encoding="utf-8"))).model
    features = Fbank()
    for samples in (400, 1359, 1360, 1999, 2000, 2640, 16000, 31999):
        frames = model.encoder.embed.num_frames(features.num_frames(torch.tensor([samples])))
        assert dataset.encoder_frames(samples) == frames.item()
    assert dataset.samples_for(1) == scoring.MIN_SAMPLES
    assert dataset.encoder_frames(dataset.samples_for(9)) == 9
    assert dataset.encoder_frames(dataset.samples_for(9) - 1) == 8


def test_a_tone_played_faster_is_higher_and_shorter() -> None:
    time = np.arange(16000) / 16000
    faster = augment.change_speed(np.sin(2 * np.pi * 400 * time).astype(np.float32), 1.1)
    expected = np.sin(2 * np.pi * 440 * time[: len(faster)])
    assert len(faster) == 14545
    np.testing.assert_allclose(faster[10:-10], expected[10:-10], atol=2e-3)


def test_low_pass_keeps_speech_and_removes_what_lies_above() -> None:
    time = np.arange(16000) / 16000
    low, high = (np.sin(2 * np.pi * hertz * time).astype(np.float32) for hertz in (1000, 5000))
    filtered = augment.low_pass(low + high, 3500.0)
    np.testing.assert_allclose(filtered[500:-500], low[500:-500], atol=0.01)


def test_mu_law_keeps_silence_and_errs_by_a_few_percent() -> None:
    table = augment.mu_law_table()
    values = np.array([0, 100, 1000, -1000, 20000], np.int16)
    decoded = table[values.view(np.uint16)]
    assert decoded[0] == 0
    np.testing.assert_allclose(decoded[1:], values[1:], rtol=0.1)


def test_a_room_starts_with_its_direct_path_and_fades() -> None:
    response = augment.room_response(np.random.default_rng(1), 0.4)
    assert response[0] == 1.0
    assert np.sum(response[: len(response) // 3] ** 2) > 10 * np.sum(response[2 * len(response) // 3 :] ** 2)


def test_noise_is_added_at_the_drawn_level(maker: dataset.BatchMaker) -> None:
    settings = augment.AugmentConfig(
        room=0, noise=1, snr_range_db=(10, 10), gain_range_db=(0, 0), quiet=0, floor=0, narrow_band=0, room_count=0
    )
    augmenter = augment.Augmenter(maker.planner.corpus, settings, seed=0)
    tone = (0.1 * np.sin(2 * np.pi * 300 * np.arange(64000) / 16000)).astype(np.float32)
    noises = []
    for seed in range(20):
        noisy = augmenter(tone, np.random.default_rng(seed), narrow=False) / 32768.0
        noises.append(np.mean((noisy - tone) ** 2))
    # The pools' unit power holds over a minute; a cut of 4 s may be louder or softer.
    assert 10 * np.log10(np.mean(tone**2) / np.mean(noises)) == pytest.approx(10.0, abs=2.0)


def test_decoder_input_and_targets_are_shifted_by_one_and_reversed_without_padding() -> None:
    tokens, counts = torch.tensor([[5, 6, 7], [8, 0, 0], [0, 0, 0]]), torch.tensor([3, 1, 0])
    inputs, targets = network.with_sos_eos(tokens, counts)
    assert inputs.tolist() == [[2, 5, 6, 7], [2, 8, 2, 2], [2, 2, 2, 2]]
    assert targets.tolist() == [[5, 6, 7, 2], [8, 2, -1, -1], [2, -1, -1, -1]]
    assert network.reverse(tokens, counts).tolist() == [[7, 6, 5], [8, 0, 0], [0, 0, 0]]


def test_masks_cover_only_valid_frames_and_are_filled_with_the_mean() -> None:
    torch.manual_seed(0)
    specaugment = masking.SpecAugment(freq_masks=0, freq_mask_bins=0, time_masks=3, time_mask_share=0.1)
    feats = torch.ones(4, 100, 80)
    masked = specaugment(feats, torch.tensor([50, 50, 50, 50]), torch.full((80,), -3.0))
    assert set(masked.unique().tolist()) == {-3.0, 1.0}
    assert (masked[:, 50:] == 1.0).all()
    assert (masked == -3.0).float().mean() < 3 * 0.1


def test_shifted_positions_are_those_of_a_stream_that_has_run_for_a_while(trained: Path) -> None:
    settings = yaml.safe_load((trained / "train.yaml").read_text(encoding="utf-8"))
    torch.manual_seed(0)
    encoder: Any = network.Network(settings).model.encoder.eval()
    feats, offset = torch.randn(1, 67, 80), 500
    with torch.no_grad():
        for unshifted in (0, 1):
            encoder.first_position = offset * (1 - unshifted)
            whole, _ = encoder(feats, torch.tensor([67]))
            layers, heads, columns = encoder.att_cache_shape
            empty = torch.zeros(1, layers, heads, 0, columns), torch.zeros(1, layers, 4, 16)
            encoder.first_position = 0
            chunk, *_ = encoder.forward_chunk(feats, torch.tensor([67]), torch.tensor([offset]), *empty)
            assert torch.allclose(whole, chunk, atol=1e-4) == (not unshifted)


def test_numbers_are_said_as_people_say_them() -> None:
    assert " ".join(grammar.number_words(2552)) == "two thousand five hundred fifty two"
    assert " ".join(grammar.number_words(40)) == "forty"


def test_public_test_recordings_never_enter_the_pack() -> None:
    assert prepare.split_of("an4", {"split": "test"}) is None
    assert prepare.split_of("fsdd", {"split": "test", "index": 3}) is None
    assert prepare.split_of("fsdd", {"split": "train", "index": 44}) == "dev"
    assert prepare.split_of("fsdd", {"split": "train", "index": 5}) == "train"
    assert prepare.split_of("speech_commands", {"split": "test", "speaker": "31583d30"}) is None
    assert prepare.split_of("librispeech_mini", {"split": "dev"}) is None


def test_units_write_a_space_as_wenet_does() -> None:
    vocabulary = units.Units()
    ids = vocabulary.encode("no o'")
    assert [vocabulary.names[index] for index in ids] == ["n", "o", "▁", "o", "'"]
    assert vocabulary.decode(ids) == "no o'"
    assert vocabulary.frames_needed("tree") == 5
