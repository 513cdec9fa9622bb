"""Kinds of models that Tritone has: each is a folder whose module `kind` has its one object of class `Kind`."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.pipelines.kind import (
        FLOAT32,
        INT64,
        WAVEFORMS,
        Kind,
        Mode,
        Specs,
        Stage,
        compile_search,
        kind_named,
        kind_of,
    )

__all__ = ["FLOAT32", "INT64", "WAVEFORMS", "Kind", "Mode", "Specs", "Stage", "compile_search", "kind_named", "kind_of"]

# Parts of manifests are read by importing `tritone.kinds.<kind>.part`, which needs no pipeline.
__getattr__ = attributes(__name__, dict.fromkeys(__all__, "tritone.pipelines.kind"))
