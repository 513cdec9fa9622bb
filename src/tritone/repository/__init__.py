"""Triton model repositories: writing them from bundles, reading them back."""

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
