"""The bundle: a folder that holds one exported model with everything serving needs to know about it."""

from tritone.bundle.bundle import Bundle, BundleWriter, resolve, shipped_bundles

__all__ = [
    "Bundle",
    "BundleWriter",
    "resolve",
    "shipped_bundles",
]
