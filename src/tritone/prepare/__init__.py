"""WHAT: whatever somebody has of a model becomes a bundle that runs here, exported once and kept in the user's cache.

prepare("faster-whisper-tiny.en")  ->  Prepared(path of a bundle, ...)
"""

from tritone.prepare.cache import cached, clear
from tritone.prepare.explain import explain
from tritone.prepare.prepare import Notify, Prepared, identify, is_bundle, is_repository, prepare

__all__ = ["Notify", "Prepared", "cached", "clear", "explain", "identify", "is_bundle", "is_repository", "prepare"]
