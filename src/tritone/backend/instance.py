"""What a starting model learns from Triton about itself: its bundle, its device, its share of the threads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.backend.settings import Settings
from tritone.bundle.bundle import Bundle
from tritone.kinds import Kind
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.whisper.draft import DraftModel
from tritone.pipelines.whisper.options import DecodingOptions, read_decoding
from tritone.preparing import Preparing
from tritone.runtime.memory import machine_bytes
from tritone.search.hotwords import read_hotwords_file
from tritone.search.options import SearchOptions


@dataclass(frozen=True)
class Instance:
    """One model instance. `placement`: which graphs it runs and where; its threads are this instance's own.

    `search`: how requests are searched that ask for nothing else, and what with.
    `warmups`: how many batches Triton itself sends for warming up before anybody else's come.
    """

    bundle: Bundle
    settings: Settings
    search: SearchSettings
    placement: Placement
    max_batch: int
    warmups: int

    def defaults(self, kind: Kind) -> Any:
        """How requests are answered that ask for nothing else, as a kind's pipeline takes it; None: it has no such."""
        if kind.options is SearchOptions:
            return self.search
        if kind.options is DecodingOptions:
            return read_decoding(self.settings.decoding)
        return self.settings.embed_options() if kind.options is EmbedOptions else None

    @property
    def beside(self) -> dict[str, Any]:
        """What a pipeline is opened with beside its own bundle, by the names of its arguments."""
        if not self.settings.draft:
            return {}
        draft = Bundle.open(self.bundle.path.parent / self.settings.draft)
        return {"draft": DraftModel(draft, self.settings.draft_precision or None)}

    def stream_options(self, kind: Kind) -> dict[str, Any]:
        """The options of a kind's pipeline for streams beyond those that all have."""
        if kind.options is DecodingOptions:
            return {"defaults": self.defaults(kind), **self.beside}
        if kind.options is not SearchOptions:
            return {}
        return {"search": self.search, "endpoints": self.settings.endpoint_rules(), **self.settings.chunking()}


def read_instance(args: Mapping[str, str], preparing: Preparing | None = None) -> Instance:
    """Read the `args` of `TritonPythonModel.initialize`.

    Args:
        preparing: does what the first answers do not need beside them.

    Raises:
        BundleError: the bundle is missing or damaged.
        LanguageModelError: the hotwords cannot be read.
        ValueError: a parameter in `config.pbtxt` is unknown or unfit.
    """
    config = json.loads(args["model_config"])
    settings = Settings.from_model_config(config)
    folder = Path(args["model_repository"]) / args["model_version"]
    # Triton writes one group per GPU out as `count` instances on each; all of them share this machine's cores.
    groups = config.get("instance_group", [])
    instances = sum(group.get("count", 1) * max(1, len(group.get("gpus", []))) for group in groups)
    on_gpu = args["model_instance_kind"] == "GPU"
    threads = settings.threads_of(instances)
    placement = Placement(
        device=f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu",
        threads=threads,
        runtime=settings.runtime or None,
        precision=settings.precision or None,
        compile=settings.compile or None,
        preparing=preparing,
        memory_mb=settings.memory_of(threads, machine_bytes()),
    )
    warmups = sum(max(1, sample.get("count", 1)) for sample in config.get("model_warmup", []))
    bundle = Bundle.open(folder / settings.bundle)
    return instance_of(bundle, settings, placement, folder, max_batch=config["max_batch_size"], warmups=warmups)


def instance_of(
    bundle: Bundle, settings: Settings, placement: Placement, folder: Path, *, max_batch: int, warmups: int = 0
) -> Instance:
    """An instance of these settings, whose files are in a folder; errors as of `read_instance`."""
    search = _search(settings, folder)
    return Instance(bundle, settings, search, placement, max_batch=max(1, max_batch), warmups=warmups)


def _search(settings: Settings, folder: Path) -> SearchSettings:
    hotwords: tuple[tuple[str, float], ...] = ()
    if settings.hotwords:
        hotwords = read_hotwords_file(folder / settings.hotwords)
    return SearchSettings(
        options=settings.options(hotwords), lm=folder / settings.lm if settings.lm else None, lm_unit=settings.lm_unit
    )
