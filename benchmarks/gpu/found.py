"""What a run kept, read for its pages: rows, and figures that are made of several of them."""

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.bundles import MODELS

Row = Mapping[str, Any]
Content = Mapping[str, Mapping[str, Any]]


class Found:
    """All rows of a run, and the figures that are made of several of them."""

    def __init__(self, content: Content) -> None:
        self.content = content

    def rows(self, part: str, what: str, **fields: Any) -> list[Row]:
        """Rows of a part whose fields have these values."""
        rows = self.content.get(part, {}).get("rows", [])
        return [
            row
            for row in rows
            if row["what"] == what and all(plain(row.get(name)) == value for name, value in fields.items())
        ]

    def ceiling(self, part: str, model: str, seconds: float, precision: str = "bf16", role: str = "encoder") -> float:
        """Utterances a second of the compiled network at its best batch; 0 where it was not measured."""
        rows = self.rows(part, "ceiling", model=model, seconds=seconds, precision=precision, role=role)
        return max((row["utterances_s"] for row in rows), default=0.0)

    def ceiling_rtfx(self, part: str, model: str) -> float:
        """The most seconds of audio a second that the compiled network does at any length."""
        rows = self.rows(part, "ceiling", model=model, role="encoder")
        return max((row["rtfx"] for row in rows), default=0.0)

    def best(self, part: str, field: str, most: float = math.inf, **fields: Any) -> Row | None:
        """The served row with the highest figure, of those without errors and with at most so many in flight."""
        rows = [row for row in self.rows(part, "served", **fields) if not row["errors"] and row["load"] <= most]
        return max(rows, key=lambda row: float(row[field]), default=None)

    def network_of(self, part: str, row: Row) -> float:
        """Utterances a second of the compiled network, or networks, that a served row needs; 0 if not measured."""
        seconds = seconds_of(row["audio"])
        alone = self.ceiling(part, row["of"], seconds, row["precision"]) if seconds else 0.0
        if not seconds and (rtfx := self.ceiling_rtfx(part, row["of"])):
            alone = rtfx * row["utterances_s"] / row["rtfx"]  # as many seconds of audio as came in a second
        if row["search"].get("search") != "rescoring":
            return alone
        decoder = self.ceiling(part, row["of"], seconds, role="decoder")
        return 1 / (1 / alone + 1 / decoder) if alone and decoder else 0.0


def plain(value: Any) -> Any:
    """A field as it is compared: of a search its name."""
    return value.get("search", "") if isinstance(value, dict) else value


def search_words(search: Mapping[str, Any]) -> str:
    """What pages call a search: its name, how many hypotheses it keeps, and whether there are hotwords."""
    name = str(search.get("search", "greedy")).replace("-", " ")
    beam = f" {search['beam']}" if "beam" in search else ""
    return f"{name}{beam}{', hotwords' if 'hotwords' in search else ''}"


def seconds_of(audio: str) -> float:
    """Seconds of one length; 0 of mixed ones."""
    return float(audio) if audio.replace(".", "").isdigit() else 0.0


def title_of(model: str) -> str:
    """What pages call a model."""
    return MODELS[model].title if model in MODELS else "plain conformer, 12 x 512, without features"
