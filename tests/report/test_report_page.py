import base64
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest

from load_reports import HOSTILE, STAMP
from tritone.report.page import data_uri, render
from tritone.report.table import Column, Table

PAGE = """\
{% extends "base.html" %}
{% from "macros.html" import table, image, audio, cards, notice, download %}
{% block content %}
{{ table(rows) }}{{ image(png, text) }}{{ audio(wav) }}{{ cards([(text, text, text)]) }}{{ notice(text) }}
{{ download(png, "a.bin", "application/octet-stream", text) }}<p id="said">{{ text }}</p>
{% endblock %}
"""


class Reader(HTMLParser):
    """Elements with their attributes, and the texts of cells, as a browser understands them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")
        self._in_cell = tag == "td"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a template of its own."""
    folder = tmp_path / "some_room" / "templates"
    folder.mkdir(parents=True)
    (tmp_path / "some_room" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "page.html").write_text(PAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_room", raising=False)
    return "some_room"


def test_a_page_asks_no_network_and_runs_no_script_but_its_own(room: str) -> None:
    rows = Table("t", [Column("id", "id")], [{"id": HOSTILE}])
    page = render(room, "page.html", title=HOSTILE, stamp=STAMP, text=HOSTILE, rows=rows, png=b"png", wav=b"wav")
    elements = Reader(page).elements
    policy = next(
        attributes["content"]
        for tag, attributes in elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    scripts = [attributes for tag, attributes in elements if tag == "script"]
    assert len(scripts) == 1
    assert f"'nonce-{scripts[0]['nonce']}'" in policy
    for _, attributes in elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "data:").startswith("data:")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page
    assert "@import" not in page


def test_a_hostile_text_arrives_as_the_text_it_is(room: str) -> None:
    rows = Table("t", [Column("id", "id"), Column("n", "n")], [{"id": HOSTILE, "n": 1.5}])
    page = render(room, "page.html", title="x", text=HOSTILE, rows=rows, png=b"", wav=b"")
    assert Reader(page).cells == [HOSTILE, "1.500"]


def test_cells_sort_by_their_value_and_not_by_their_text(room: str) -> None:
    values = [1.23456, None, float("nan"), float("inf"), True]
    rows = Table("t", [Column("n", "n", 1)], [{"n": value} for value in values])
    page = render(room, "page.html", title="x", text="", rows=rows, png=b"", wav=b"")
    keys = [attributes.get("data-sort") for tag, attributes in Reader(page).elements if tag == "td"]
    assert keys == ["1.23456", "", "", "Infinity", "1"]


def test_long_tables_can_be_filtered_and_short_ones_need_it_not(room: str) -> None:
    def page(count: int) -> str:
        rows = Table("t", [Column("n", "n")], [{"n": number} for number in range(count)])
        return render(room, "page.html", title="x", text="", rows=rows, png=b"", wav=b"")

    assert 'type="search"' not in page(3)
    assert 'type="search"' in page(30)


def test_bytes_travel_inside_of_the_page(room: str) -> None:
    page = render(room, "page.html", title="x", text="", rows=Table("", [], []), png=b"\x89PNG\x00", wav=b"RIFF")
    found = [base64.b64decode(text) for text in re.findall(r'"data:[^;]+;base64,([^"]*)"', page)]
    assert found == [b"\x89PNG\x00", b"RIFF", b"\x89PNG\x00"]
    assert data_uri(b"a", "text/plain") == "data:text/plain;base64,YQ=="


def test_a_text_that_is_no_utf_8_does_not_cost_the_page(room: str) -> None:
    page = render(room, "page.html", title="x", text="a\udcff", rows=Table("", [], []), png=b"", wav=b"")
    assert "a?" in page
    assert page.encode("utf-8")


def test_a_value_that_a_template_misses_is_an_error_and_not_a_gap(room: str) -> None:
    with pytest.raises(jinja2.UndefinedError, match="rows"):
        render(room, "page.html", title="x", text="", png=b"", wav=b"")
