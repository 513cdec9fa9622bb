"""Written by `tritone build`."""

from tritone.backend.acoustic import TritonPythonModel
