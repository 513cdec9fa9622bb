"""Triton model repositories: writing them from bundles, reading them back."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.repository.build import build_repository
    from tritone.repository.config import ModelOptions
    from tritone.repository.ensemble import EnsembleOptions, parse_stages
    from tritone.repository.folder import BuiltModel
    from tritone.repository.instances import AUTO, Instances
    from tritone.repository.models import (
        backends_of,
        check_settings,
        compiled_searches,
        features_of,
        is_all_ours,
        read_repository,
        runtimes_of,
        shared_memory_bytes,
    )

__all__ = [
    "AUTO",
    "BuiltModel",
    "EnsembleOptions",
    "Instances",
    "ModelOptions",
    "backends_of",
    "build_repository",
    "check_settings",
    "compiled_searches",
    "features_of",
    "is_all_ours",
    "parse_stages",
    "read_repository",
    "runtimes_of",
    "shared_memory_bytes",
]

__getattr__ = attributes(
    __name__,
    {
        "build_repository": "tritone.repository.build",
        "ModelOptions": "tritone.repository.config",
        **dict.fromkeys(("EnsembleOptions", "parse_stages"), "tritone.repository.ensemble"),
        "BuiltModel": "tritone.repository.folder",
        **dict.fromkeys(("AUTO", "Instances"), "tritone.repository.instances"),
        **dict.fromkeys(
            (
                "backends_of",
                "check_settings",
                "compiled_searches",
                "features_of",
                "is_all_ours",
                "read_repository",
                "runtimes_of",
                "shared_memory_bytes",
            ),
            "tritone.repository.models",
        ),
    },
)
