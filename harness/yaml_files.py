"""YAML files read into pydantic models, with errors that name file, line and key.

YAML 1.2 by ruamel's round-trip loader: `1e-5` is a float, `no` a string, a key written twice an error. No torch, no ray.
"""

from __future__ import annotations

import functools
import io
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

import harness
from harness.errors import UserError, hint, quoted, unknown
from harness.paths import named_path

SHOWN_ERRORS = 3


class Strict(BaseModel):
    """A frozen model that rejects keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """An unknown key is told beside all other mistakes, with the keys that there are."""
        try:
            return handler(values)
        except ValidationError as error:
            details: list[Any] = error.errors(include_url=False)
            known = sorted(cls.model_fields)
            for item in details:
                if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
                    meant = hint(str(item["loc"][0]), known)
                    sentence = f"unknown key.{meant} Known here: {', '.join(known) or 'none'}."
                    item |= {"type": "value_error", "ctx": {"error": ValueError(sentence)}}
            raise ValidationError.from_exception_data(cls.__name__, details) from None


class MisplacedError(ValueError):
    """Raised by a model's own validator to say which key below it is wrong: `loc` as keys from that model down."""

    def __init__(self, loc: Sequence[int | str], message: str) -> None:
        super().__init__(message)
        self.loc = tuple(loc)


@contextmanager
def placed(*loc: int | str) -> Iterator[None]:
    """What is raised below is wrong at `loc`, as keys from the model that is validated, or from the `placed` around this one, down."""
    try:
        yield
    except MisplacedError as error:
        raise MisplacedError((*loc, *error.loc), str(error)) from None
    except (UserError, ValueError) as error:
        raise MisplacedError(loc, str(error)) from None


def one_of(kind: str, known: Iterable[str]) -> AfterValidator:
    """For the annotation of a name: it must be known."""
    names = tuple(known)

    def checked(name: str) -> str:
        if name not in names:
            raise ValueError(str(unknown(kind, name, names)))
        return name

    return AfterValidator(checked)


M = TypeVar("M", bound=BaseModel)


def load_yaml(path: Path, model: type[M]) -> M:
    """The YAML file at `path` as a validated `model`; `~` is expanded.

    Raises UserError for a file that cannot be read, and as `parse_yaml` does.
    """
    return parse_yaml(_read(path), model, str(path))


def _read(path: Path) -> str:
    raw = b""
    try:
        raw = named_path(str(path)).read_bytes()
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: the file is not UTF-8 text; save it as UTF-8.") from None


Places = Callable[..., str]
"""('a', 'b') -> 'FILE, line N, key a.b', as errors name it."""


def places_of(path: Path) -> Places:
    """Names the places of keys in a YAML file. Raises UserError as `load_yaml` does."""
    tree = _parse(_read(path), str(path))
    return lambda *loc: _place(str(path), *_locate(tree, loc))


def packaged_files(folder: str) -> dict[str, Path]:
    """The YAML files that come with the harness, by name: `folder` of a checkout, then its copy inside the installed package."""
    package = Path(harness.__file__).parent
    copies, checkout = (sorted(each.glob("*.yaml")) for each in (package / f"_{folder}", package.parent / folder))
    return {path.stem: path for path in (*copies, *checkout)}


def load_named(name_or_path: str | Path, model: type[M], folder: str, kind: str, where: str = "") -> M:
    """A packaged file by name, or a user's own by path (it ends in .yaml or .yml, or holds a slash). `kind`: what it is; `where`: how errors
    name who asked for it. Raises UserError for an unknown name (with the closest one), and as `load_yaml` does."""
    text = str(name_or_path)
    files, path = packaged_files(folder), Path(name_or_path)
    if path.parent == Path(folder) and path.suffix == ".yaml" and path.stem in files and not path.exists():
        text = path.stem  # as a checkout has it, typed elsewhere
    elif isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text:
        return load_yaml(path, model)
    if text not in files:
        raise unknown(kind, text, files, where or kind)
    return typing.cast(M, _packaged(files[text], model))


_packaged = functools.cache(load_yaml)


def parse_yaml(text: str, model: type[M], where: str) -> M:
    """YAML text as a validated `model`; `where` names the text in errors. Raises UserError for what is empty, no YAML or does not fit: the first
    three errors, each as 'FILE, line N, key a.b.c: what is wrong and what is allowed.'"""
    values = _values(text, where)
    if values is None:
        keys = ", ".join(name for name, field in model.model_fields.items() if field.is_required())
        raise UserError(f"{where}: the file is empty; it needs the keys {keys or 'of ' + model.__name__}.")
    return validated(model, values, where, text)


def validated(model: type[M], values: Mapping[str, Any], where: str, text: str = "") -> M:
    """Values as a `model`. Raises UserError, which names `where` and the lines of the YAML `text` that they are of."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(describe_errors(error, where, _parse(text, where) if text else None)) from None


def parse_value(text: str) -> Any:
    """One value as typed on a command line, read as YAML 1.2: `1e-5` a float, `true` a bool, `[1, 2]` a list; what is no YAML as it is."""
    try:
        return _values(text, "value")
    except UserError:
        return text


def format_value(value: Any) -> str:
    """A value as `parse_value` reads it back; the string 'true' is quoted, the truth is not. Of a float the shorter of the two ways to write it
    exactly: 0.05, but 2e-4; counts, of epochs for example, stay plain: 10.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_value, value)) + "]"
    text = str(value)
    if not isinstance(value, float):
        return json.dumps(value) if isinstance(value, str) and parse_value(text) != value else text
    scientific, count = f"{Decimal(text).normalize():e}".replace("e+", "e"), value.is_integer() and abs(value) < 10_000
    return scientific if len(scientific) < len(text) and not count else text


def describe_errors(
    error: ValidationError, where: str, tree: Any = None, origins: Mapping[str, str] | None = None
) -> str:
    """The first three errors, a sentence and a line each. `tree`: what was validated; one of ruamel adds line numbers. `where` names the file
    or flag; `origins`: what names a top-level key instead."""
    found = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        loc = (*item["loc"], *cause.loc) if isinstance(cause, MisplacedError) else item["loc"]
        path, line = _locate(tree, loc)
        if item["type"] == "missing":
            path.append(str(loc[-1]))
        place = _place(where, path, line)
        place = (origins or {}).get(path[0], place) if path else place
        found.append((line or 0, f"{place}: {_sentence(item)}"))
    lines = [text for _, text in sorted(found, key=lambda pair: pair[0])]
    more = [f"{where}: and {len(lines) - SHOWN_ERRORS} more."] if len(lines) > SHOWN_ERRORS else []
    return "\n".join(lines[:SHOWN_ERRORS] + more)


def _place(where: str, path: Sequence[str], line: int | None) -> str:
    return where + (f", line {line}" if line else "") + (f", key {'.'.join(path)}" if path else "")


def dumped(values: Mapping[str, Any], *, lists_in_a_line: bool = True) -> str:
    """Values as YAML that reads back unchanged, without anchors."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.default_flow_style = None if lists_in_a_line else False
    yaml.width = 1_000_000  # a folded line does not read back unchanged
    yaml.representer.ignore_aliases = lambda data: True
    out = io.StringIO()
    yaml.dump(values, out)
    return out.getvalue()


def _parse(text: str, where: str, kind: Literal["rt", "safe"] = "rt") -> Any:
    """A ruamel tree that knows the line of each key, or plain values ('safe'). Raises UserError for what is not YAML."""
    from ruamel.yaml import YAML

    try:
        return YAML(typ=kind, pure=True).load(text)
    except Exception as error:  # of wrong tags, numbers and merges the library raises what Python does
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())[:200] or type(error).__name__
        raise UserError(f"{where}{place}: not valid YAML ({problem}); correct it.") from None


def _values(text: str, where: str) -> Any:
    """Plain values. Raises UserError, which names `where`, for what is not YAML or no JSON: keys that are none, characters that no file may hold,
    and a value that contains itself."""
    values = _parse(text, where, "safe")
    try:
        written = json.dumps(values, default=str, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        written = rb"\u0000"
    if rb"\u0000" in written.replace(rb"\\", b""):
        raise UserError(
            f"{where}: a key is a list, a text holds half a character or a null, or a value contains itself; write plain keys and values."
        )
    return values


def _locate(tree: Any, loc: Sequence[int | str]) -> tuple[list[str], int | None]:
    """The keys of `loc` that stand in the tree (pydantic adds names of union members) and the line of the last one."""
    node, line, path = tree, None, []
    for part in loc:
        marks = getattr(node, "lc", None)
        if isinstance(node, Mapping):
            key = next((k for k in node if k == part or str(k) == str(part)), None)
            if key is None:
                continue
            path.append(str(key))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            key = part
            path.append(str(part))
        else:
            continue
        # a key merged in by `<<`, or a tree not read from a file, has no mark: the line of the parent stands
        with suppress(AttributeError, KeyError, TypeError):
            line = (marks.key(key) if isinstance(node, Mapping) else marks.item(key))[0] + 1  # type: ignore[union-attr]
        node = node[key]
    if line is None and getattr(tree, "lc", None) is not None:
        line = tree.lc.line + 1
    return path, line


def _sentence(item: Any) -> str:
    kind, message = item["type"], str(item["msg"])
    if kind == "missing":
        return "this key is missing and is required."
    if kind == "too_short":
        return "the list is empty; give it a value, or leave the key out."
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"should be a mapping of keys to values, not {quoted(item['input'])}."
    if kind in ("value_error", "assertion_error"):
        message = message.partition(", ")[2]
        return message if message.endswith(".") else message + "."
    message = message.replace("Input should", "should", 1).replace("valid tuple", "list").replace("valid list", "list")
    message = message[:1].lower() + message[1:]
    return f"{message}, not {quoted(item['input'])}."
