"""The model that Triton runs for embeddings, under the name by which repositories know it."""

from tritone.backend.offline import TritonPythonModel

__all__ = ["TritonPythonModel"]
