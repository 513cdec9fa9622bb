"""Written by `tritone build`."""

from tritone.backend.offline import TritonPythonModel
