"""Triton model repositories: writing them from bundles, reading them back."""

from tritone.repository.build import (
    BuiltModel,
    build_repository,
    compiled_searches,
    is_all_ours,
    read_repository,
    runtimes_of,
    shared_memory_bytes,
)
from tritone.repository.config import ModelOptions

__all__ = [
    "BuiltModel",
    "ModelOptions",
    "build_repository",
    "compiled_searches",
    "is_all_ours",
    "read_repository",
    "runtimes_of",
    "shared_memory_bytes",
]
