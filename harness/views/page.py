"""A page: sections of sentences, tables, pictures and commands as one file of HTML.

Pure: equal sections give equal bytes. All text is escaped but `Markup`. The page allows nothing but its own style and script, by their
digests, so that no request leaves it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.views.document import Entry, Section
from harness.views.view import shown
from harness.wording import escaped

MANY = 8
"""From so many rows on, a table has a filter."""


def _cell(cell: str | Entry) -> Markup:
    lines = cell.below if isinstance(cell, Entry) else ()
    small = [(f' class="{name}"' if name else "", shown(text, "html")) for name, text in lines]
    below = "".join(f"<small{attribute}>{text}</small>" for attribute, text in small)
    return Markup(shown(str(cell), "html") + below)


def page(title: str, subtitle: str, sections: Sequence[Section], lead: str) -> str:
    """The whole file. `lead`: the conclusion, in a sentence above everything."""
    style, script = _asset("page.css"), _asset("page.js")
    text: str = _template().render(
        title=title,
        subtitle=subtitle,
        lead=lead,
        sections=sections,
        style=Markup(style),  # ours, from the package
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'",
    )
    return escaped(text, lines=True)  # sentences too, which the template makes HTML of


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _asset(name: str) -> str:
    return (resources.files("harness.views") / "templates" / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("harness.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    environment.globals["many_rows"] = MANY
    return environment.get_template("page.html.jinja")
