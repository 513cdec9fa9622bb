"""Models that take the language: the option `language`, and refusals. Parity see `test_nemo_folder.py`."""

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
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.export import export_nemo
from tritone.families.nemo.model import NemoModel
from tritone.pipelines.offline import OfflinePipeline
from tritone.search.options import SearchOptions

LANGUAGES = {"en-US": 0, "de": 2, "auto": 5}
WIDTH, HIDDEN, PROMPTS = 16, 12, 7


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
    assert [each.language for each in together] == ["de", "", "en-US"]  # nobody knows what auto finds
    assert together[0].to_dict()["language"] == alone[0].get().language == "de"
    texts = {name: recognizer.transcribe(waveforms[:1], search={"language": name})[0].text for name in LANGUAGES}
    assert len(set(texts.values())) == 3
    assert recognizer.transcribe(waveforms[:1])[0].text == texts["auto"]
    assert tritone.load(prompted, language="de").transcribe(waveforms[:1])[0].text == texts["de"]
    with pytest.raises(InputError, match="language is 'xx', and this model knows auto, de, en-US"):
        recognizer.transcribe(waveforms[:1], search={"language": "xx"})


def test_models_that_are_told_no_language_refuse_one() -> None:
    with pytest.raises(InputError, match="is takes no language"):
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
