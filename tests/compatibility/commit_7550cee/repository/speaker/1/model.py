"""Written by `tritone build`."""

from tritone.backend.embedding import TritonPythonModel
