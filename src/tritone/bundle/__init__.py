"""The bundle: a folder that holds one exported model with everything serving needs to know about it."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.bundle.bundle import Bundle, BundleWriter, resolve, shipped_bundles

__all__ = [
    "Bundle",
    "BundleWriter",
    "resolve",
    "shipped_bundles",
]

__getattr__ = attributes(
    __name__,
    {
        **dict.fromkeys(("Bundle", "BundleWriter", "resolve", "shipped_bundles"), "tritone.bundle.bundle"),
    },
)
