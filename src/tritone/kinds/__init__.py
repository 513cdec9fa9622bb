"""Kinds of models that Tritone has: each is one object of class `Kind`, in a module of its own."""

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
