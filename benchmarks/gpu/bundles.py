"""The models that are measured: random weights, published sizes, exported on the machine itself.

MODELS["wenet-512"].make(folder)  ->  folder/wenet-512, a bundle of torch programs

They say about 25 to 40 words in ten seconds of speech, as people do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tritone.bundle.manifest import Precision

TOKEN_RATE = 5  # word pieces a second of speech

Family = Literal["wenet", "icefall", "jasper", "speaker", "nemo"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of a family. `size`: arguments of its random checkpoint; `tiny` replaces some of them for smoke tests."""

    name: str
    title: str
    family: Family
    size: Mapping[str, Any]
    tiny: Mapping[str, Any]
    streaming: bool = False
    precisions: Sequence[Precision] = ("bf16",)
    runtimes: Sequence[str] = ("torch",)
    chunk_ms: float = 0.0  # of a stream's steps

    @property
    def kind(self) -> str:
        """What `tritone` calls models like it."""
        if self.family == "nemo" and "ctc" not in self.size["size"]:
            return "transducer"
        return {"icefall": "transducer", "speaker": "embedding"}.get(self.family, "ctc")

    def path(self, folder: Path, smoke: bool) -> Path:
        """Where its bundle is kept."""
        return folder / (f"{self.name}-tiny" if smoke else self.name)

    def make(self, folder: Path, smoke: bool = False) -> Path:
        """Export it, unless its bundle is there already."""
        path = self.path(folder, smoke)
        if (path / "manifest.json").is_file():
            return path
        size = {**self.size, **(self.tiny if smoke else {})}
        options: dict[str, Any] = {
            "name": self.name,
            "runtimes": tuple(self.runtimes),
            "precisions": tuple(self.precisions),
            "checked": False,
        }
        if self.family == "wenet":
            from benchmarks.models import wenet

            wenet.random_bundle(wenet.ModelSize(**size), path, streaming=self.streaming, **options)
        elif self.family == "icefall":
            from benchmarks.models import transducer

            encoder = size.pop("encoder")
            if smoke:
                encoder = transducer.smaller(encoder)
            transducer.random_bundle(encoder, path, streaming=self.streaming, **size, **options)
        elif self.family == "jasper":
            from benchmarks.models import jasper

            jasper.random_bundle(size["blocks"], path, **options)
        elif self.family == "nemo":
            from benchmarks.models import nemo

            chosen = nemo.smaller(size["size"]) if smoke else size["size"]
            nemo.random_bundle(chosen, path, token_rate=TOKEN_RATE, **self._streaming_option(), **options)
        else:
            from benchmarks.models import speaker

            speaker.random_bundle(size["size"], path, **options)
        return path

    def _streaming_option(self) -> dict[str, bool]:
        """The option of `tritone export nemo` for streams, where the model is for them."""
        from tritone.families.nemo.options import NemoOptions

        if not self.streaming:
            return {}
        if "streaming" not in {each.name for each in fields(NemoOptions)}:
            raise RuntimeError(
                f"{self.name} is for streams, but `tritone export nemo` of this version has no option --streaming: "
                "measure another part, or with a version that has it"
            )
        return {"streaming": True}


def _wenet(name: str, title: str, streaming: bool, **size: int) -> Model:
    tiny = {"width": 16, "heads": 2, "blocks": 1, "linear_units": 16, "decoder_blocks": 1, "vocab_size": 60}
    chunk_ms = 640.0 if streaming else 0.0
    size |= {"decoder_blocks": 3, "token_rate": TOKEN_RATE}
    return Model(name=name, title=title, family="wenet", size=size, tiny=tiny, streaming=streaming, chunk_ms=chunk_ms)


def _icefall(
    name: str,
    title: str,
    encoder: str,
    streaming: bool = False,
    vocab_size: int = 500,
    precisions: Sequence[Precision] = ("bf16",),
) -> Model:
    size = {"encoder": encoder, "token_rate": TOKEN_RATE, "vocab_size": vocab_size}
    tiny = {"vocab_size": 60}
    chunk_ms = 640.0 if streaming else 0.0
    return Model(
        name=name,
        title=title,
        family="icefall",
        size=size,
        tiny=tiny,
        streaming=streaming,
        chunk_ms=chunk_ms,
        precisions=precisions,
    )


def _speaker(name: str, title: str, size: str) -> Model:
    return Model(
        name=name,
        title=title,
        family="speaker",
        size={"size": size},
        tiny={"size": "resnet18" if size.startswith("resnet") else "ecapa_c512"},
        precisions=("fp32", "bf16"),
    )


def _nemo(name: str, title: str, size: str, streaming: bool = False, chunk_ms: float = 0.0) -> Model:
    return Model(
        name=name,
        title=title,
        family="nemo",
        size={"size": size},
        tiny={},
        streaming=streaming,
        chunk_ms=chunk_ms,
    )


MODELS = {
    each.name: each
    for each in (
        _wenet("wenet-512", "U2++ conformer, 12 x 512", False, width=512, heads=8, linear_units=2048, vocab_size=5537),
        _wenet("wenet-256", "U2++ conformer, 12 x 256", True, width=256, heads=4, linear_units=2048, vocab_size=5000),
        _icefall("conformer-l", "icefall conformer, 12 x 512", "conformer-l", precisions=("bf16", "fp32")),
        _icefall("zipformer-m", "zipformer-M, streaming", "zipformer-m", streaming=True, precisions=("bf16", "fp32")),
        _icefall("zipformer-l", "zipformer-L", "zipformer-l"),
        _icefall("zipformer-xl", "zipformer of 290 M parameters", "zipformer-xl"),
        Model(name="jasper", title="Jasper 10x5dr", family="jasper", size={"blocks": "10x5dr"}, tiny={"blocks": "5x1"}),
        Model(
            name="jasper-runtimes",
            title="Jasper 10x5dr",
            family="jasper",
            size={"blocks": "10x5dr"},
            tiny={"blocks": "5x1"},
            precisions=("fp16", "fp32"),
            runtimes=("torch", "torchscript", "onnxruntime"),
        ),
        _speaker("resnet34", "ResNet34", "resnet34"),
        _speaker("ecapa", "ECAPA-TDNN c512", "ecapa_c512"),
        _nemo("parakeet-0.6b", "Parakeet TDT 0.6B, 24 x 1024", "parakeet-tdt-0.6b-v2"),
        _nemo("parakeet-ctc-1.1b", "Parakeet CTC 1.1B, 42 x 1024", "parakeet-ctc-1.1b"),
        _nemo("parakeet-rnnt-1.1b", "Parakeet RNNT 1.1B, 42 x 1024", "parakeet-rnnt-1.1b"),
        _nemo("nemotron-0.6b", "Nemotron streaming 0.6B, 24 x 1024", "nemotron-streaming-0.6b", True, 1120.0),
    )
}
