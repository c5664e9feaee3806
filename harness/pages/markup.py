"""Cells of HTML: the marks of a table, and text around them escaped."""

from __future__ import annotations

from markupsafe import Markup, escape

from harness.tables.render import Style


class Html(Style):
    """The marks of every other format of a table, in HTML."""

    def escape(self, text: str) -> str:
        return str(escape(" ".join(text.split())))

    def best(self, text: str) -> str:
        return f"<b>{text}</b>"

    def mark(self, letters: str) -> str:
        return f"<sup>{letters}</sup>"


HTML = Html(" ± ", "—")


def below(cell: str, lines: list[tuple[str, str]]) -> Markup:
    """A cell of this style with small lines below it: (class or '', text)."""
    small = Markup().join(
        Markup('<small class="{}">{}</small>').format(name, text) if name else Markup("<small>{}</small>").format(text)
        for name, text in lines
    )
    return Markup(cell) + small  # HTML.escape has escaped the cell
