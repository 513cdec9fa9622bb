"""Descriptions of the models of a repository for people and tools that ask over HTTP: OpenAPI, Postman, curl."""

from tritone.describe.models import DescribedModel, described_models
from tritone.describe.write import write_descriptions

__all__ = ["DescribedModel", "described_models", "write_descriptions"]
