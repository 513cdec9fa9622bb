"""What Triton tells a starting model about itself: its bundle, its device, its share of the threads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.backend.settings import Settings
from tritone.bundle.bundle import Bundle
from tritone.pipelines.searching.base import SearchSettings


@dataclass(frozen=True)
class Placement:
    """One model instance. `device` is "cpu" or "cuda:<index>"; `threads` are this instance's own.

    `search`: how requests are searched that ask for nothing else, and what with.
    `warmups`: how many batches Triton itself sends for warming up before anybody else's come.
    """

    bundle: Bundle
    settings: Settings
    search: SearchSettings
    device: str
    threads: int
    max_batch: int
    warmups: int

    @property
    def graphs(self) -> dict[str, Any]:
        """Which graphs a pipeline runs, and where: arguments of every pipeline."""
        return {
            "device": self.device,
            "threads": self.threads,
            "runtime": self.settings.runtime or None,
            "precision": self.settings.precision or None,
        }


def placement(args: Mapping[str, str]) -> Placement:
    """Read the `args` of `TritonPythonModel.initialize`.

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
    return Placement(
        bundle=Bundle.open(folder / settings.bundle),
        settings=settings,
        search=_search(settings, folder),
        device=f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu",
        threads=settings.threads_of(instances),
        max_batch=max(1, config["max_batch_size"]),
        warmups=sum(max(1, sample.get("count", 1)) for sample in config.get("model_warmup", [])),
    )


def _search(settings: Settings, folder: Path) -> SearchSettings:
    hotwords: tuple[tuple[str, float], ...] = ()
    if settings.hotwords:
        from tritone.search.hotwords import read_hotwords_file

        hotwords = read_hotwords_file(folder / settings.hotwords)
    return SearchSettings(
        options=settings.options(hotwords), lm=folder / settings.lm if settings.lm else None, lm_unit=settings.lm_unit
    )
