"""The transducer's recipe on invented recordings: its vocabulary, a few steps, icefall's files, and greedy search."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipe trains with torch: pip install '.[export]'")
yaml = pytest.importorskip("yaml", reason="the recipe reads YAML: pip install '.[export]'")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from short_runs import run_on_tones  # noqa: E402
from training import augment, corpus, dataset, graphs, pieces, recipe, systems, train, transducer  # noqa: E402

BPE = ROOT / "training/demo-transducer/bpe.model"
TINY = {
    "dropout": 0.1,
    "position_width": 8,
    "every_stack": {
        "layers": 1,
        "width": 16,
        "heads": 2,
        "query_size": 4,
        "value_size": 4,
        "position_size": 4,
        "feed_forward": 16,
        "kernel": 5,
    },
    "stacks": [{"downsampling": 1}, {"downsampling": 2}],
}


def tiny_settings() -> dict:
    """demo-transducer.yaml with a network small enough for a test."""
    values = yaml.safe_load((ROOT / "training/demo-transducer.yaml").read_text(encoding="utf-8"))
    values["zipformer"] = json.loads(json.dumps(TINY))
    values["transducer"].update(predictor_width=16, joiner_dim=16)
    values["recipe"].update(batch_seconds=4, warmup_steps=2, chunk_choices=[[8, 8]])
    values["recipe"].update(chunk_served=8, left_served=16)
    values["recipe"]["augment"] = {"room_count": 2}
    return values


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run of three steps on tones that stand for words."""
    return run_on_tones(tmp_path_factory.mktemp("transducer"), tiny_settings())


def test_a_short_run_has_finite_losses_and_scores_the_dev_set(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "train_log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    for row in steps:
        assert row["skipped"] == 0
        assert all(math.isfinite(row[name]) and row[name] > 0 for name in ("loss", "transducer", "ctc"))
    assert set(rows[-1]["dev"]) == {"an4"}


def test_the_output_has_icefalls_files_with_upstreams_names(trained: Path) -> None:
    state = torch.load(trained / "pretrained.pt", weights_only=True)["model"]
    vocab = len(pieces.Pieces(BPE))
    wanted = {
        "encoder_embed.conv.0.weight": (8, 1, 3, 3),
        "encoder_embed.convnext.pointwise_conv1.weight": (384, 128, 1, 1),
        "encoder.encoders.0.layers.0.self_attn_weights.linear_pos.weight": (8, 8),
        "encoder.encoders.1.encoder.layers.0.conv_module1.depthwise_conv.chunkwise_conv_scale": (2, 16, 5),
        "encoder.encoders.1.downsample.bias": (2,),
        "decoder.embedding.weight": (vocab, 16),
        "decoder.conv.weight": (16, 4, 2),
        "joiner.output_linear.weight": (vocab, 16),
        "ctc_output.1.weight": (vocab, 16),
    }
    assert {name: tuple(state[name].shape) for name in wanted} == wanted
    lines = (trained / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["<blk> 0", "<sos/eos> 1", "<unk> 2"]
    assert len(lines) == vocab
    assert (trained / "bpe.model").read_bytes() == BPE.read_bytes()


def test_an_output_folder_can_be_started_from(trained: Path) -> None:
    settings = yaml.safe_load((trained / "settings.yaml").read_text(encoding="utf-8"))
    system = systems.make_system(settings, recipe.read_recipe(settings["recipe"]), torch.device("cpu"))
    system.load(trained)
    state = torch.load(trained / "pretrained.pt", weights_only=True)["model"]
    own = system.model.upstream_state()  # type: ignore[operator]
    assert all(torch.equal(own[name], state[name]) for name in state)


def test_every_word_of_the_domain_survives_the_vocabulary() -> None:
    vocabulary = pieces.Pieces(BPE)
    for text in ("", "zero", "erase k l m u five two seven four", "the old man's chair", "january twenty third"):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert min(ids, default=3) > 2  # neither blank nor <unk>
    assert len(vocabulary.encode("seven q")) == 2
    assert vocabulary.frames_needed("two two") == 3
    assert vocabulary.decode([0, 2, 1, *vocabulary.encode("six")]) == "six"


def test_contexts_start_with_nothing_and_a_blank() -> None:
    found = transducer.contexts(torch.tensor([[5, 6], [7, 0]]), 2)
    assert found.tolist() == [[[-1, 0], [0, 5], [5, 6]], [[-1, 0], [0, 7], [7, 0]]]
    assert transducer.contexts(torch.zeros(1, 0, dtype=torch.int64), 3).tolist() == [[[-1, -1, 0]]]


def test_greedy_search_says_what_the_logits_of_a_full_lattice_say(trained: Path) -> None:
    settings = yaml.safe_load((trained / "settings.yaml").read_text(encoding="utf-8"))
    torch.manual_seed(3)
    model = transducer.IcefallModel.from_config(transducer.model_config(settings, 9)).eval()
    encoded = 3.0 * torch.randn(2, 30, model.encoder.output_dim)
    with torch.no_grad():
        found = transducer.greedy_search(model, encoded, torch.tensor([30, 11]))
        for row, count in enumerate((30, 11)):
            assert found[row]
            logits = transducer.joint_logits(model, encoded[row : row + 1], torch.tensor([found[row]]))[0]
            said: list[int] = []
            for frame in range(count):
                best = int(logits[frame, len(said)].argmax())
                said += [best] if best else []
            assert said == found[row]


def test_padding_takes_the_place_of_everything_behind_a_row() -> None:
    feats = torch.ones(2, 4, 3)
    padded = transducer.with_padding(feats, torch.tensor([4, 2]), 2)
    assert padded.shape == (2, 6, 3)
    assert (padded[0, :4] == 1).all()
    assert (padded[1, :2] == 1).all()
    torch.testing.assert_close(padded[0, 4:], torch.full((2, 3), math.log(1e-10)))
    torch.testing.assert_close(padded[1, 2:], torch.full((4, 3), math.log(1e-10)))


def test_batches_of_fixed_shapes_come_in_few_and_lose_no_sound(trained: Path) -> None:
    loaded = corpus.Corpus.load([trained.parent / "tiny.zip"], {"train"})
    augmenter = augment.Augmenter(loaded, augment.AugmentConfig(room_count=1), seed=0)
    planner = dataset.Planner(loaded, dataset.MixtureConfig(), augmenter, pieces.Pieces(BPE))
    maker = dataset.BatchMaker(planner, batch_seconds=20, seed=1, fixed_shapes=True)
    shapes = set(dataset.batch_shapes(20))
    for number in range(12):
        batch = maker[number]
        assert (*batch.waveforms.shape, batch.tokens.shape[1]) in shapes
        assert int(batch.num_samples.max()) <= batch.waveforms.shape[1]
        assert int(batch.num_tokens.max()) <= batch.tokens.shape[1]
        for waveform, length in zip(batch.waveforms, batch.num_samples.tolist(), strict=True):
            assert not waveform[length:].any()
    again = maker[5]
    assert all(torch.equal(left, right) for left, right in zip(maker[5], again, strict=True))


def test_a_run_may_be_a_part_of_the_schedule() -> None:
    budget = train.Budget(started=train.time.monotonic(), minutes=60, steps=10, first=0.5, last=0.75)
    assert budget.share(0) == pytest.approx(0.5, abs=1e-3)
    assert budget.share(10) == pytest.approx(0.75, abs=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_graph_gives_the_gradients_of_the_step_that_it_holds() -> None:
    settings = tiny_settings()
    device = torch.device("cuda")
    system = systems.make_system(settings, recipe.read_recipe(settings["recipe"]), device)
    system.model.eval()  # no dropout

    def compute(batch: dataset.Batch, chunk: int, left: int) -> dict:
        feats, lengths = system.features(batch.waveforms.float() / 32768.0, batch.num_samples)
        losses = system.losses(feats, lengths, batch, chunk, left, np.random.default_rng(0))
        losses["loss"].backward()
        return {name: value.detach() for name, value in losses.items()}

    graphed = graphs.GraphedStep(system.model, compute, device)
    generator = torch.Generator().manual_seed(0)
    for count in (2, 3, 2):
        waveforms = torch.randint(-9000, 9000, (count, 16000), generator=generator, dtype=torch.int16)
        tokens = torch.randint(3, 20, (count, 4), generator=generator)
        batch = dataset.Batch(
            waveforms, torch.tensor([16000, 9000, 12000][:count]), tokens, torch.tensor([4, 2, 3][:count])
        )
        found = graphed(batch, -1, -1)
        gradients = [gradient.clone() for gradient in graphed.gradients]
        torch._foreach_zero_(graphed.gradients)
        expected = compute(dataset.Batch(*(part.to(device) for part in batch)), -1, -1)
        torch.testing.assert_close(found["loss"], expected["loss"])
        for left, right in zip(gradients, graphed.gradients, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
