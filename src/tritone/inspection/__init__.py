"""What a path is, as tables: a bundle, a model repository, a graph. Nothing that is looked at is run."""

from tritone.inspection.inspection import Inspection, Listing, inspect_path

__all__ = ["Inspection", "Listing", "inspect_path"]
