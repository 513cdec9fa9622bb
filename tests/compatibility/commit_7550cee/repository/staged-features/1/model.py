"""Written by `tritone build`."""

from tritone.backend.features import TritonPythonModel
