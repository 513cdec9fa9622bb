"""Written by `tritone build`."""

from tritone.backend.streaming import TritonPythonModel
