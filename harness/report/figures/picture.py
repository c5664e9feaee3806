"""Figures of matplotlib as SVG inside a page: its colours are the page's, its text is text, and it has a name.

A page's Content-Security-Policy forbids style attributes, so each property of one becomes an attribute or a class. Pure: the same
figure gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from harness.report.figures.panels import FAINT, INK, MUTED, SERIES, SETTINGS, file_of, of_xml

_CLASSES = {FAINT: "g", MUTED: "m", **{colour: str(number) for number, colour in enumerate(SERIES)}}
_DROPPED = {"font-family", "stroke-dashoffset", "stroke-linejoin", "stroke-linecap", "font-style"}
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")


def picture(make: Callable[[], Any], name: str, title: str, description: str) -> Markup:
    """The figure that `make` returns, as an SVG element. `name`: unlike that of other pictures of its page. Raises ValueError for a figure
    that holds an image of pixels."""

    def bare() -> Any:
        figure = make()
        for each in (figure, *figure.axes):
            each.patch.set_visible(False)
        return figure

    root = ElementTree.fromstring(file_of(bare, "svg", **{"svg.fonttype": "none"}))
    if root.find(f".//{_SVG}image") is not None:
        raise ValueError(f"the picture {name} holds an image of pixels, which no page admits")
    _without(root, {f"{_SVG}metadata", f"{_SVG}style"})
    for element in root.iter():
        _restyled(element)
    _lighter(root)
    _named(root, name)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.text = (element.text or "").strip() or None
        element.tail = None
    box = root.get("viewBox", "")
    root.attrib = {"viewBox": box, "role": "img", "aria-labelledby": f"{name}-t {name}-d"}
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, id=f"{name}-{tag[0]}")
        element.text = of_xml(text)
        root.insert(position, element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # escaped by ElementTree


def _without(element: ElementTree.Element, tags: set[str]) -> None:
    for child in list(element):
        if child.tag in tags:
            element.remove(child)
        else:
            _without(child, tags)


def _restyled(element: ElementTree.Element) -> None:
    """Style attributes as attributes and classes, coordinates with one decimal, turns by nothing left out."""
    classes = []
    for name, value in _properties(element.attrib.pop("style", "")):
        paint = name in ("fill", "stroke")
        if paint and value in _CLASSES:
            classes.append(f"{name[0]}{_CLASSES[value]}")
        elif paint and value == INK:
            element.set(name, "currentColor")
        elif name not in _DROPPED:
            element.set(name, value)
    if classes:
        element.set("class", " ".join(classes))
    if element.get("font-size") == str(SETTINGS["font.size"]):  # the style sheet has it
        del element.attrib["font-size"]
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for name in ("d", "x", "y", "transform", "width", "height"):
        if name in element.attrib:
            element.set(name, _NUMBER.sub(_short, " ".join(element.attrib[name].split())))


def _lighter(root: ElementTree.Element) -> None:
    """Without groups, clips, and strokes of marks, which their shape has already."""
    for element in root.iter():
        element.attrib.pop("clip-path", None)
        if element.tag == f"{_SVG}use":
            element.attrib.pop("stroke", None)
            element.attrib.pop("stroke-width", None)
            kept = [name for name in element.attrib.pop("class", "").split() if name.startswith("f")]
            if kept:
                element.set("class", kept[0])
        element[:] = [kept for child in element for kept in _ungrouped(child)]


def _ungrouped(element: ElementTree.Element) -> list[ElementTree.Element]:
    """The element; of a group, which here has no attribute that is seen, what it holds."""
    if element.tag == f"{_SVG}clipPath":
        return []
    shapes = element.tag == f"{_SVG}defs" and any(child.tag == f"{_SVG}path" for child in element)
    if element.tag not in (f"{_SVG}g", f"{_SVG}defs") or shapes:
        return [element]
    return [each for child in element for each in _ungrouped(child)]


def _properties(style: str) -> Iterator[tuple[str, str]]:
    for each in style.split(";"):
        name, _, value = each.partition(":")
        if value:
            yield name.strip(), value.strip().removesuffix("px")


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _named(root: ElementTree.Element, name: str) -> None:
    """Only ids that are referred to stay, with the picture's name before them."""
    used = {element.attrib[_LINK].removeprefix("#") for element in root.iter() if _LINK in element.attrib}
    new = {old: f"{name}-{number}" for number, old in enumerate(sorted(used))}
    for element in root.iter():
        if (old := element.attrib.pop("id", None)) in new:
            element.set("id", new[old])
        if _LINK in element.attrib:
            element.set("href", f"#{new[element.attrib.pop(_LINK).removeprefix('#')]}")
