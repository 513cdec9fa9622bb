"""The bundle: a folder that holds one exported model with everything serving needs to know about it."""

from tritone.bundle.bundle import Bundle, BundleWriter, resolve, shipped_bundles
from tritone.bundle.manifest import Manifest
from tritone.bundle.vocabulary import Speller, Vocabulary, Word, read_tokens, write_tokens

__all__ = [
    "Bundle",
    "BundleWriter",
    "Manifest",
    "Speller",
    "Vocabulary",
    "Word",
    "read_tokens",
    "resolve",
    "shipped_bundles",
    "write_tokens",
]
