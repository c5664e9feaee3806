"""A page: sections of sentences, tables, pictures and commands as one file of HTML.

Pure: equal sections give equal bytes. All text is escaped but `Markup`. The page allows nothing but its own style and script, by their
digests, so that no request leaves it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

MANY = 8
"""From so many rows on, a table has a filter."""


@dataclass(frozen=True)
class Table:
    """`rows`: cells as text, or Markup of several lines; the first cell of a row is its heading, where the table is `headed`. `left`:
    columns of text, which are sorted as text; the others are numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})
    headed: bool = True
    kind: ClassVar[str] = "table"

    @property
    def filtered(self) -> bool:
        return len(self.rows) >= MANY


@dataclass(frozen=True)
class Lines:
    """Sentences, a list where there are several."""

    lines: Sequence[str]
    kind: ClassVar[str] = "lines"


@dataclass(frozen=True)
class Picture:
    """`data`: what it shows, as a table; a legend has none."""

    svg: Markup
    caption: str
    data: Table | None = None
    kind: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Pictures:
    """Small pictures side by side."""

    pictures: Sequence[Picture]
    kind: ClassVar[str] = "pictures"


@dataclass(frozen=True)
class Commands:
    """Command lines."""

    lines: Sequence[str]
    kind: ClassVar[str] = "commands"


@dataclass(frozen=True)
class Heading:
    text: str
    kind: ClassVar[str] = "heading"


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens."""

    summary: str
    blocks: Sequence[Block]
    kind: ClassVar[str] = "folded"


Block = Table | Lines | Picture | Pictures | Commands | Heading | Folded


@dataclass(frozen=True)
class Section:
    """`name`: its anchor."""

    name: str
    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    style, script = _asset("page.css"), _asset("page.js")
    text: str = _template().render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        style=Markup(style),  # ours, from the package
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'",
    )
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _asset(name: str) -> str:
    return (resources.files("harness.pages") / "templates" / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("harness.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")
