"""A page: views one after another as one file of HTML.

Pure: equal sections give equal bytes. The page allows nothing but its own style and script, by their digests, and pictures within it, so that no
request leaves it.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from harness.views.view import Table, View, html_of, shown
from harness.wording import escaped


@dataclass(frozen=True)
class Commands:
    """Command lines."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens."""

    summary: str
    blocks: Sequence[Block]


Block = View | Table | list[str] | Commands | Folded
"""A list has sentences."""


@dataclass(frozen=True)
class Section:
    """`name`: its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


def page(title: str, subtitle: str, sections: Sequence[Section], lead: str) -> str:
    """The whole file. `lead`: the conclusion, in a sentence above everything."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    text: str = _template().render(
        title=title,
        subtitle=subtitle,
        lead=shown(lead, "text"),
        sections=[(each.name, each.title, Markup("".join(map(_html, each.blocks)))) for each in sections],
        style=Markup(style),  # ours, from the package
        script=Markup(script),
        policy=policy,
    )
    return escaped(text, lines=True)


def _html(block: Block) -> str:
    """A block, all of it escaped."""
    if isinstance(block, View):
        return str(block.written("html"))
    if isinstance(block, Table):
        return html_of([block], ())
    if isinstance(block, list):
        return html_of((), block)
    if isinstance(block, Commands):
        return "".join(f'<pre tabindex="0"><code>{html.escape(line)}</code></pre>' for line in block.lines)
    inside = "".join(map(_html, block.blocks))
    return f'<details class="folded"><summary>{shown(block.summary, "html")}</summary>{inside}</details>'


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _asset(name: str) -> str:
    return (resources.files("harness.views") / "templates" / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("harness.views")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.jinja")
