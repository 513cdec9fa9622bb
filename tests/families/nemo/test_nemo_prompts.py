"""Models that are told the language: parity with transformers' Nemotron 3.5, the option `language`, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tritone
from families.conftest import babble
from families.nemo_models import LABELS, small_config, write_archive
from shared import Shared
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError, InputError
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.export import export_nemo
from tritone.families.nemo.graphs import OfflineGraph
from tritone.families.nemo.model import NemoModel
from tritone.pipelines.offline import OfflinePipeline
from tritone.search.options import SearchOptions

LANGUAGES = {"en-US": 0, "de": 2, "auto": 5}
WIDTH, HIDDEN, PROMPTS = 16, 12, 7
# transformers' names, in the order in which they are replaced by NeMo's.
RENAMED = (
    ("encoder.subsampling.conv_in.", "encoder.pre_encode.conv.0."),
    ("encoder.subsampling.layers.0.depthwise_conv.", "encoder.pre_encode.conv.2."),
    ("encoder.subsampling.layers.0.pointwise_conv.", "encoder.pre_encode.conv.3."),
    ("encoder.subsampling.layers.1.depthwise_conv.", "encoder.pre_encode.conv.5."),
    ("encoder.subsampling.layers.1.pointwise_conv.", "encoder.pre_encode.conv.6."),
    ("encoder.subsampling.linear.", "encoder.pre_encode.out."),
    ("self_attn.q_proj", "self_attn.linear_q"),
    ("self_attn.k_proj", "self_attn.linear_k"),
    ("self_attn.v_proj", "self_attn.linear_v"),
    ("self_attn.o_proj", "self_attn.linear_out"),
    ("self_attn.relative_k_proj", "self_attn.linear_pos"),
    ("self_attn.bias_", "self_attn.pos_bias_"),
    ("conv.norm.", "conv.batch_norm."),
    ("encoder_projector.", "joint.enc."),
    ("decoder.embedding.", "decoder.prediction.embed."),
    ("decoder.lstm.", "decoder.prediction.dec_rnn.lstm."),
    ("decoder.decoder_projector.", "joint.pred."),
    ("joint.head.", "joint.joint_net.2."),
    ("prompt_projector.linear_1.", "prompt_kernel.0."),
    ("prompt_projector.linear_2.", "prompt_kernel.2."),
)


def nemo_config() -> dict[str, Any]:
    content = small_config(
        "rnnt",
        att_context_size=[[6, 2], [6, 0]],
        att_context_style="chunked_limited",
        causal_downsampling=True,
        conv_context_size="causal",
        conv_norm_type="layer_norm",
    )
    content["target"] = "nemo.collections.asr.models.EncDecRNNTBPEModelWithPrompt"
    content["joint"]["jointnet"]["joint_hidden"] = HIDDEN
    content["preprocessor"]["normalize"] = "NA"
    content["model_defaults"] = {
        "enc_hidden": WIDTH,
        "pred_hidden": HIDDEN,
        "joint_hidden": HIDDEN,
        "initialize_prompt_feature": True,
        "num_prompts": PROMPTS,
        "prompt_dictionary": LANGUAGES,
    }
    return content


def upstream() -> Any:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Nemotron3_5AsrConfig"):
        pytest.skip("the reference network needs transformers 5.24")
    torch.manual_seed(1)
    config = transformers.Nemotron3_5AsrConfig(
        vocab_size=len(LABELS) + 1,
        decoder_hidden_size=HIDDEN,
        blank_token_id=len(LABELS),
        num_prompts=PROMPTS,
        prompt_intermediate_size=2 * WIDTH,
        default_prompt_id=LANGUAGES["auto"],
        encoder_config={
            "model_type": "nemotron_asr_streaming_encoder",
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 2 * WIDTH,
            "conv_kernel_size": 5,
            "subsampling_conv_channels": 6,
            "num_mel_bins": 20,
            "scale_input": False,
            "sliding_window": 7,
            "default_num_lookahead_tokens": 2,
        },
    )
    model = transformers.Nemotron3_5AsrForRNNT(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(parameter + 0.2 * torch.randn(parameter.shape))
    return model


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, value in state.items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        found[name] = value
    return found


def test_encoder_frames_and_scores_are_those_of_transformers_for_every_language() -> None:
    theirs = upstream()
    config = parse_config(nemo_config())
    model = NemoModel.of(config, len(LABELS), renamed(theirs.state_dict()), "transformers")
    graph = OfflineGraph(model, LogMel(config.features), "transducer").eval()
    assert model.joint is not None
    assert model.predictor is not None
    worst = 0.0
    for language in LANGUAGES.values():
        features = torch.randn(2, 130, 20, generator=torch.Generator().manual_seed(language))
        lengths = torch.tensor([130, 97])
        mask = torch.arange(130) < lengths[:, None]
        told = torch.full((2,), language)
        expected = theirs.get_audio_features(features, attention_mask=mask, prompt_ids=told, num_lookahead_tokens=2)
        encoded, counts = model.encoder(features, lengths)
        assert model.prompt_kernel is not None
        found = model.joint.enc(model.prompt_kernel(encoded, told))
        for row, count in enumerate(counts.tolist()):
            worst = max(worst, float((found[row, :count] - expected.pooler_output[row, :count]).abs().max()))
        token = torch.tensor([[language]])
        scores = theirs(decoder_input_ids=token.expand(2, 1), encoder_outputs=expected, use_decoder_cache=False).logits
        states = torch.zeros(1, 2, HIDDEN)
        predicted, *_ = model.predictor(token, states, states)
        ours = model.joint(found[:1, 0], model.joint.pred(predicted))
        worst = max(worst, float((ours[0] - scores[0].reshape(-1, len(LABELS) + 1)[0]).abs().max()))
    assert worst < 1e-4, worst  # of numbers around 1, in float32
    assert graph.dynamic["language"] == {0: "batch"}


def random_state(config: Any) -> dict[str, Tensor]:
    torch.manual_seed(4)
    wanted = NemoModel(config, len(LABELS)).upstream_state()
    return {name: torch.randn(value.shape) * (2.0 if "prompt" in name else 0.4) for name, value in wanted.items()}


def archive_of(content: dict[str, Any], folder: Path, **changes: Tensor) -> Path:
    class Saved:
        def __init__(self) -> None:
            self.content = content

        def state_dict(self) -> dict[str, Tensor]:
            return random_state(parse_config(nemo_config())) | changes

    return write_archive(folder / "prompted.nemo", Saved())  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def prompted(shared: Shared) -> Path:
    def make(folder: Path) -> Path:
        archive = archive_of(nemo_config(), folder)
        report = export_nemo(archive=archive, output=folder / "bundle")
        assert any("option language, auto if none is given" in note for note in report.notes)
        return folder / "bundle"

    return shared("nemo-prompted", make)


def test_a_request_names_its_language_and_batches_mix_them(prompted: Path) -> None:
    recognizer = tritone.load(prompted)
    waveforms = [babble(20000, seed=seed) for seed in range(3)]
    options = [{"language": "de"}, {}, {"language": "en-US"}]
    pipeline = OfflinePipeline(Bundle.open(prompted))
    together = pipeline.recognize(waveforms, [SearchOptions().changed(each) for each in options])
    alone = [
        recognizer.transcribe([waveform], search=each)[0] for waveform, each in zip(waveforms, options, strict=True)
    ]
    assert [each.text for each in together] == [each.text for each in alone]
    texts = {name: recognizer.transcribe(waveforms[:1], search={"language": name})[0].text for name in LANGUAGES}
    assert len(set(texts.values())) == 3
    assert recognizer.transcribe(waveforms[:1])[0].text == texts["auto"]
    assert tritone.load(prompted, language="de").transcribe(waveforms[:1])[0].text == texts["de"]
    with pytest.raises(InputError, match="language is 'xx', and this model knows auto, de, en-US"):
        recognizer.transcribe(waveforms[:1], search={"language": "xx"})


def test_models_that_are_told_no_language_refuse_one() -> None:
    with pytest.raises(InputError, match="is not told the language"):
        tritone.load("demo-asr").transcribe([np.zeros(8000, np.float32)], search={"language": "de"})


def test_prompts_without_their_class_or_their_numbers_are_refused(tmp_path: Path) -> None:
    content = nemo_config()
    content["target"] = "nemo.collections.asr.models.EncDecRNNTBPEModel"
    with pytest.raises(ExportError, match="takes no prompts"):
        parse_config(content)
    content = nemo_config()
    content["model_defaults"]["prompt_dictionary"] = {"de": 7}
    with pytest.raises(ExportError, match=r"prompt_dictionary\.de is 7, expected 0 to 6"):
        parse_config(content)
    del content["model_defaults"]
    content["target"] = "nemo.collections.asr.models.EncDecRNNTBPEModel"
    with pytest.raises(ExportError, match=r"unknown prompt_kernel\.0\.weight"):
        export_nemo(archive=archive_of(content, tmp_path), output=tmp_path / "b")
    with pytest.raises(ExportError, match="leave them out"):
        export_nemo(archive=archive_of(nemo_config(), tmp_path), output=tmp_path / "b", stages=True)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nemo.collections.asr.models.EncDecMultiTaskModel", "this is Canary, .* would be needed"),
        ("nemo.collections.asr.models.SortformerEncLabelModel", "this is Sortformer, .* would be needed"),
        ("some.Other", "not known here; its network and its search would be needed"),
    ],
)
def test_other_classes_are_refused_with_what_they_would_need(target: str, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(small_config() | {"target": target})


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"enc_hidden": 8}, "enc_hidden is 8, but the settings made of it say 16"),
        ({"twisted": 1}, "model_defaults: unknown twisted"),
    ],
)
def test_defaults_that_do_not_fit_are_refused(defaults: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(small_config() | {"model_defaults": defaults})
