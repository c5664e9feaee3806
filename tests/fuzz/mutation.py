"""Changes to valid inputs: of values, keys and parts of a tree by its structure, of any file by its bytes."""

from __future__ import annotations

import copy
import json
import math
import random
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


def like(value: Any) -> list[Any]:
    """Other numbers, words or truth values, similar to `value`."""
    if isinstance(value, bool) or value is None:
        return [not value, str(value), 1]
    if isinstance(value, (int, float)):
        return [-value, value + 1, value * 10**6, value / 3, float(value), str(value), [value]]
    if isinstance(value, str):
        half = len(value) // 2
        return [value[:half], *(value[:half] + each + value[half:] for each in "xé.+:/, \n"), value.upper(), value * 2]
    return [[value]]


def mutate(rng: random.Random, tree: Any) -> None:
    """Change one value or key of a tree of dicts and lists in place."""
    places = list(slots(tree))
    if not places:
        return
    (node, key), (other, place), act = rng.choice(places), rng.choice(places), rng.randrange(8)
    if act == 0:
        del node[key]
    elif act == 1 and isinstance(node, dict):
        node[rng.choice([*like(str(key)), "", 1, -1, 2.5, True])] = node.pop(key)
    elif act == 2:
        node[key] = copy.deepcopy(other[place])
    elif act == 3 and isinstance(node, list):
        node.extend(node * rng.choice([1, 30]))
    elif act == 4 and isinstance(node[key], dict):
        node[key][rng.choice(["", "a", "name", "steps", 1, True])] = rng.choice(NASTY)
    else:
        node[key] = rng.choice(NASTY if act < 7 else like(node[key]))


INSERTED = (*(bytes([code]) for code in b'\0\xff\n\t#[}",'), b": ", b"- ", b"\xef\xbb\xbf", b"&a ", b"*a")


def noise(rng: random.Random, raw: bytes) -> bytes:
    """Flip, insert, delete or repeat some bytes, or cut the rest off."""
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.choice([1, 1, 4, 40]))
        new = rng.choice([bytes([rng.randrange(256)]), rng.choice(INSERTED) + raw[at:end], b"", raw[at:end] * 50])
        raw = raw[:at] + new + raw[end:] * (rng.random() < 0.8)
    return raw


def emitted(value: Any) -> str:
    """YAML in flow style."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{emitted(key)}: {emitted(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(emitted, value)) + "]"
    return json.dumps(value, default=str).replace("NaN", ".nan").replace("Infinity", ".inf")


def changed(rng: random.Random, tree: Any, *, plain: bool = False) -> bytes:
    """A mutated tree as a file: as YAML with a line for each key, with `plain` as JSON."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        mutate(rng, tree)
    lines = [json.dumps(tree, default=str)] if plain else [f"{emitted(k)}: {emitted(v)}" for k, v in tree.items()]
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    return noise(rng, raw) if rng.random() < 0.2 else raw
