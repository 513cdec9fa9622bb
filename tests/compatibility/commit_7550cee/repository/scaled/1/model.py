"""Written by `tritone build`."""

from tritone.backend.generic import TritonPythonModel
