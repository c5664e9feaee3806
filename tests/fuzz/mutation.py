"""Changes to valid inputs: of values, keys and parts of a tree by its structure, of any file by its bytes."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
from collections.abc import Iterator
from typing import Any


class Raw(str):
    """YAML text that is written unchanged."""


NASTY: list[Any] = [
    *(0, 1, -1, 2, 7, 2**31, 2**32, 2**63, 10**30, -(10**30), 10**400),
    *(0.0, 0.5, -0.5, 1.5, 1e-320, 1e-12, 1e6, 1e300, -1e300, math.inf, -math.inf, math.nan),
    *(None, True, False, [], {}, [[]], [None], [{}], {"": 1}, {"a": {"b": []}}, [1, 2, 3], ["a", "b"]),
    *("", " ", "a", "x" * 300, "x" * 5000, "~nobody_x", "~nobody_x/a.yaml", "\0", "\ud800", "é", "\u202e", "a\nb", "%s", "{}", "{0}"),
    *("\x1b[2J\x07", "a\u202eb", "<img onerror=x>", "https://me:hush@host/x", "hub:me:hush@a/b", "a,b", "=1+1"),
    *("../..", ".", "..", "/dev/null", "/dev/zero", "null", "[", "0", "1e5", "1e-5", "true", "no", "hub", "hub:a/b", "${HOME}", "a:b"),
    *("ft", "scl", "cmlm", "tapt", "mlm", "taco", "coco_lm", "cssl", "electra", "cmlm+scl", "scl+scl", "cmlm+", "+", "cmlm.alpha"),
    *("accuracy", "mcc", "f1", "spearman", "flops", "sst2", "movies", "stsb", "mnli", "quick", "paper", "test", "new:tiny", "few_shot"),
    *(Raw(text) for text in ("*a", "&a [*a]", "!!set {a}", "!!set {? [a]}", "!!python/object:os.system x", "{[a]: 1}", "{? {b: 1} : 2}")),
    *(Raw(text) for text in ("!!binary aGk=", "2020-01-01", "0x1F", "0o17", "1_000", "~", ".inf", "-.inf", ".nan", "1e400", "<<", "!x 1")),
    *(Raw(text) for text in ("{<<: 1}", "{<<: [1]}", "!!int x", "!!float []", "!!timestamp x", "!!omap [a: 1]", "'''", '"', "|", "? ", "@")),
    *(Raw("[" * 150 + "]" * 150), Raw("[" * 300), Raw("{a: " * 300), Raw("x, " * 2000)),
    Raw("[&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], *d, *d]"),
]  # fmt: skip


def slots(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of every value below `tree`."""
    pairs = list(tree.items() if isinstance(tree, dict) else enumerate(tree)) if isinstance(tree, (dict, list)) else []
    for key, value in pairs:
        yield tree, key
        yield from slots(value)


def scaled(rng: random.Random, value: Any) -> Any:
    """Another number, word or truth value, similar to `value`."""
    if isinstance(value, bool) or value is None:
        return rng.choice([not value, str(value), 1])
    if isinstance(value, (int, float)):
        return rng.choice([-value, value + 1, value * 10**6, value / 3, float(value), str(value), [value]])
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice(
            [value[:at], value[:at] + rng.choice("xé.+:/, \n") + value[at:], value.upper(), value * 2, [value]]
        )
    return [value]


def mutate(rng: random.Random, tree: Any) -> None:
    """Change one value or key of a tree of dicts and lists in place."""
    places = list(slots(tree))
    if not places:
        return
    node, key = rng.choice(places)
    act = rng.randrange(8)
    if act <= 1:
        node[key] = rng.choice(NASTY)
    elif act == 2:
        node[key] = scaled(rng, node[key])
    elif act == 3:
        del node[key]
    elif act == 4 and isinstance(node, dict):
        new = rng.choice([scaled(rng, str(key)), rng.choice(NASTY)])
        node[new if isinstance(new, (str, int, float)) else str(new)] = node.pop(key)
    elif act == 5:
        other, place = rng.choice(places)
        node[key] = json.loads(
            json.dumps(other.get(place) if isinstance(other, dict) else (other[place:] or [0])[0], default=str)
        )
    elif act == 6 and isinstance(node, list):
        node.extend(node[:] * rng.choice([1, 1, 30]))
    elif isinstance(node[key], dict):
        node[key][rng.choice(["", "a", "name", "steps", 1, -1, 2.5, True])] = rng.choice(NASTY)
    else:
        node[key] = rng.choice(NASTY)


INSERTED = [
    *(bytes([code]) for code in b"\0\xff\n\t#"), b": ", b"- ", b"[", b"}", b'"', b",", b"\xef\xbb\xbf", b"&a ", b"*a",
]  # fmt: skip


def noise(rng: random.Random, raw: bytes) -> bytes:
    """Flip, insert, delete or repeat some bytes."""
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.choice([1, 1, 4, 40]))
        act = rng.randrange(5)
        if act == 0:
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[end:]
        elif act == 1:
            raw = raw[:at] + rng.choice(INSERTED) + raw[at:]
        elif act == 2:
            raw = raw[:at] + raw[end:]
        elif act == 3:
            raw = raw[:at] + raw[at:end] * rng.choice([2, 50]) + raw[end:]
        else:
            raw = raw[:at]
    return raw


def emitted(value: Any) -> str:
    """YAML in flow style."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{emitted(key)}: {emitted(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(emitted, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    with unlimited_digits():
        return json.dumps(value)


def block(tree: dict[Any, Any]) -> bytes:
    """A YAML file with a line for each key."""
    text = "\n".join(f"{emitted(key)}: {emitted(value)}" for key, value in tree.items())
    return text.encode("utf-8", "surrogatepass")


@contextlib.contextmanager
def unlimited_digits() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def changed(rng: random.Random, tree: Any, *, plain: bool = False) -> bytes:
    """A mutated tree as a file: as YAML with a line for each key, with `plain` as JSON."""
    tree = json.loads(json.dumps(tree)) if plain else copied(tree)
    if rng.random() < 0.9:
        for _ in range(rng.choice([1, 1, 2, 3])):
            mutate(rng, tree)
    if plain:
        with unlimited_digits():
            raw = json.dumps(tree, default=str).encode("utf-8", "surrogatepass")
    else:
        raw = block(tree)
    return noise(rng, raw) if rng.random() < 0.2 else raw


def copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list) else tree
