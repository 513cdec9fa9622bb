"""Written by `tritone build`."""

from tritone.backend.decoder import TritonPythonModel
