"""Figures of matplotlib as SVG inside a page: its colours are the page's, its text is text, and it has a name.

A page's Content-Security-Policy forbids style attributes, so each property of one becomes an attribute or a class. Pure: the same
figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

INK, FAINT = "#000000", "#020202"
"""Colours of text and axes, and of lines behind the points."""
SERIES = tuple(f"#0101{number:02x}" for number in range(8))
"""Colours of lines: the page's style sheet has the visible ones, for light and for dark."""
_MARKERS = "osD^vPX*"
_STROKES = ("-", "--", ":", "-.")
TEXT = 9
"""Size of most text, which the style sheet sets."""
_CLASSES = {FAINT: "g", **{colour: str(number) for number, colour in enumerate(SERIES)}}
_DROPPED = {"font-family", "stroke-dashoffset", "stroke-linejoin", "stroke-linecap", "font-style"}
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")


def look(place: int) -> dict[str, Any]:
    """Colour, marker and stroke of the row at a place of its table, so that it looks alike in every picture: of 64 rows no two alike."""
    colour, turn = place % len(SERIES), place // len(SERIES)
    marker = _MARKERS[(place + turn) % len(_MARKERS)]
    return {"color": SERIES[colour], "marker": marker, "linestyle": _STROKES[(place + turn) % len(_STROKES)]}


def picture(make: Callable[[], Any], name: str, title: str, description: str, *, own_colours: bool = False) -> Markup:
    """The figure that `make` returns, as an SVG element. `name`: unlike that of other pictures of its page. `own_colours`: the figure is
    not drawn with INK, FAINT and SERIES, and stands on white in the dark too."""
    import matplotlib

    settings: Any = {"svg.hashsalt": "harness", "svg.fonttype": "none", "font.size": TEXT, "text.parse_math": False}
    file = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = make()
        for each in () if own_colours else (figure, *figure.axes):
            each.patch.set_visible(False)
        for each in figure.findobj(
            lambda artist: artist.get_rasterized()
        ):  # a page admits no image, not even within it
            each.set_rasterized(False)
            each.set_edgecolor("face")
        box = "tight" if own_colours else None
        figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches=box)
    return inline(file.getvalue(), name, title, description, own_colours=own_colours)


def inline(svg: bytes, name: str, title: str, description: str, *, own_colours: bool = False) -> Markup:
    """An SVG file of matplotlib as an element of a page. Raises ValueError for one that holds an image of pixels."""
    root = ElementTree.fromstring(svg)
    if root.find(f".//{_SVG}image") is not None:
        raise ValueError(f"the picture {name} holds an image of pixels, which no page admits")
    _without(root, {f"{_SVG}metadata", f"{_SVG}style"})
    for element in root.iter():
        _restyled(element, own_colours)
    if not own_colours:
        _lighter(root)
    _named(root, name)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.text = (element.text or "").strip() or None
        element.tail = None
    box = root.get("viewBox", "")
    root.attrib = {"viewBox": box, "role": "img", "aria-labelledby": f"{name}-t {name}-d"}
    root.set("class", "own" if own_colours else "")
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, id=f"{name}-{tag[0]}")
        element.text = text
        root.insert(position, element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # escaped by ElementTree


def _without(element: ElementTree.Element, tags: set[str]) -> None:
    for child in list(element):
        if child.tag in tags:
            element.remove(child)
        else:
            _without(child, tags)


def _restyled(element: ElementTree.Element, own_colours: bool) -> None:
    """Style attributes as attributes and classes, coordinates with one decimal, turns by nothing left out."""
    classes = []
    for name, value in _properties(element.attrib.pop("style", "")):
        mine = not own_colours and name in ("fill", "stroke")
        if mine and value in _CLASSES:
            classes.append(f"{name[0]}{_CLASSES[value]}")
        elif mine and value == INK:
            element.set(name, "currentColor")
        elif name not in _DROPPED:
            element.set(name, value)
    if classes:
        element.set("class", " ".join(classes))
    if element.get("font-size") == str(TEXT) and not own_colours:
        del element.attrib["font-size"]
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for name in ("d", "x", "y", "transform", "width", "height"):
        if name in element.attrib:
            element.set(name, _NUMBER.sub(_short, " ".join(element.attrib[name].split())))


def _lighter(root: ElementTree.Element) -> None:
    """Without what our own pictures do not need: groups, clips, and strokes of marks, which their shape has already."""
    for element in root.iter():
        element.attrib.pop("clip-path", None)
        if element.tag == f"{_SVG}use":
            element.attrib.pop("stroke", None)
            element.attrib.pop("stroke-width", None)
            kept = [name for name in element.get("class", "").split() if name.startswith("f")]
            element.attrib.pop("class", None)
            if kept:
                element.set("class", kept[0])
        children = []
        for child in element:
            children += _ungrouped(child)
        element[:] = children


def _ungrouped(element: ElementTree.Element) -> list[ElementTree.Element]:
    """The element; of a group, which here has no attribute that is seen, what it holds."""
    if element.tag == f"{_SVG}clipPath":
        return []
    if element.tag not in (f"{_SVG}g", f"{_SVG}defs") or any(
        child.tag == f"{_SVG}path" for child in element if element.tag == f"{_SVG}defs"
    ):
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
    used |= {each for element in root.iter() for each in re.findall(r"url\(#(\w+)\)", element.get("clip-path", ""))}
    new = {old: f"{name}-{number}" for number, old in enumerate(sorted(used))}
    for element in root.iter():
        if (old := element.attrib.pop("id", None)) in new:
            element.set("id", new[old])
        if _LINK in element.attrib:
            element.set("href", f"#{new[element.attrib.pop(_LINK).removeprefix('#')]}")
        if found := re.fullmatch(r"url\(#(\w+)\)", element.get("clip-path", "")):
            element.set("clip-path", f"url(#{new[found[1]]})")
