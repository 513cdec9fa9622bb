"""Pages: one HTML file each, which asks no network for anything and lets no text of a result act as markup.

    a template of a room, tables, images, sounds  ->  HTML

A room's templates lie in its folder `templates` and extend `base.html`, which lies beside this file with the macros:

    {% extends "base.html" %}
    {% from "macros.html" import table, image, audio, cards, notice, download %}
    {% block content %}{{ table(words) }}{% endblock %}

`base.html` takes `title` and, if they are given, `subtitle` (text), `stamp` (a `Stamp`). A script of a template needs
`<script nonce="{{ nonce }}">`; the page's Content-Security-Policy stops every other.
"""

import base64
import math
import secrets
from typing import TYPE_CHECKING

from tritone.report.table import Cell

if TYPE_CHECKING:
    from jinja2 import Environment

OUR_PACKAGE = "tritone.report"


def render(package: str, template: str, **context: object) -> str:
    """Fill a template.

    Args:
        package: the package whose folder `templates` holds it, e.g. "tritone.evaluate".
        template: its file name.
        context: what the template uses; a name that is missing is an error, not an empty place.

    Raises:
        jinja2.TemplateError: our own bug, in a template or in what it was given.
    """
    environment = _environment(package)
    page = environment.get_template(template).render(nonce=secrets.token_urlsafe(16), **context)
    return page.encode("utf-8", "replace").decode("utf-8")  # a file name that is no UTF-8 must not cost the report


def data_uri(content: bytes, mime: str) -> str:
    """Bytes as an address that holds them."""
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"


def _environment(package: str) -> "Environment":
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = dict.fromkeys([package, OUR_PACKAGE])
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(each, "templates") for each in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["data_uri"] = data_uri
    environment.filters["sort_key"] = _sort_key
    return environment


def _sort_key(value: Cell) -> str | None:
    """The key by which a browser sorts a cell, numbers with all their digits; None of a text, which sorts by itself."""
    if isinstance(value, str):
        return None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"  # as JavaScript writes it
    return str(int(value)) if isinstance(value, bool) else str(value)
