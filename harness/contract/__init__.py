"""The contract of objectives: the laws that tests hold the built-in ones to, and `harness check` a file from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from harness.contract.objectives import OF_OBJECTIVE, BrokenLawError, bert_config, made, require, unread, write_bert
from harness.errors import UserError, first_line
from harness.methods import Method, RunContext, chain, definition_of
from harness.prompts import Prompt
from harness.specs import Data, Encoder, Objective, Optim, RowSet, Selection, Stage

CONTEXT = RunContext(
    task="toy",
    size=20,
    subset=0,
    seed=31,
    data=Data(RowSet("b" * 32), num_labels=2, max_length=96, dev=RowSet("d" * 32), tests=(RowSet("f" * 32),)),
    unlabelled=Data(RowSet("a" * 32), max_length=96),
    fine_tune=Optim(1e-5, 64, 700),
    post_train=Optim(2e-5, 256, 650),
    selection=Selection("accuracy"),
    encoder=Encoder("e" * 32),
    translated=Data(RowSet("9" * 32), max_length=96, views=2),
    prompt=Prompt("{first} It was [MASK].", ("terrible", "great")),
)


class Outcome(NamedTuple):
    """A law in words, what it was held against, and how it is broken; '' where it holds."""

    law: str
    subject: str
    broken: str


def check(method: type[Method], source: str) -> Iterator[Outcome]:
    """The laws of the objectives that the file with this digest defines, at its method's defaults and at each value of a switch or a named choice."""
    try:
        stages = _stages(method)
    except (Exception, SystemExit) as error:  # whatever the file's code raises
        yield Outcome("its stages are made", f"method {method.name}", _words(error))
        return
    yield Outcome("its stages are made", f"method {method.name}", "")
    with TemporaryDirectory() as folder:
        bert = write_bert(Path(folder) / "bert")
        for stage in stages:
            spec = stage.objective
            if spec.source != source or definition_of(spec).refused(bert_config().to_dict()):
                continue
            make = partial(_made, bert, spec, stage.data.views)
            words = ", ".join(f"{name} {value}" for name, value in spec.params.items())
            for law in OF_OBJECTIVE:
                yield _held(law, f"objective {spec.name}{f' ({words})' if words else ''}", make)
            yield _held(all_its_parameters_are_read, f"objective {spec.name}", make, spec)


def all_its_parameters_are_read(make: Any, spec: Objective) -> None:
    names = unread(make, spec)
    require(
        not names,
        f"no code reads {', '.join(sorted(names))}; drop it from the definition, since it moves keys and no number",
    )


def _made(folder: Path, spec: Objective, views: int, *, p_m: float | None = None, **how: Any) -> Any:
    if p_m is not None and "p_m" in spec.params:
        how["p_m"] = p_m
    return made(folder, spec, views, **how)


def _stages(method: type[Method]) -> list[Stage]:
    """One for each objective: another number is the same code."""
    found = {repr(stage.objective): stage for stage in chain([method()], CONTEXT)}
    for name, info in method.model_fields.items():
        for value in (True, False) if info.annotation is bool else get_args(info.annotation):
            with suppress(UserError, ValidationError):  # it cannot stand beside the defaults
                for stage in chain([method(**{name: value})], CONTEXT):
                    found.setdefault(repr(stage.objective), stage)
    return list(found.values())


def _held(law: Callable[..., None], subject: str, *arguments: Any) -> Outcome:
    broken = ""
    try:
        law(*arguments)
    except (Exception, SystemExit) as error:  # whatever the file's code raises
        broken = _words(error)
    return Outcome(law.__name__.replace("_", " "), subject, broken)


def _words(error: BaseException) -> str:
    known = isinstance(error, BrokenLawError | UserError)
    return str(error).rstrip(".") if known else f"{type(error).__name__}: {first_line(error)}"


__all__ = ["BrokenLawError", "Outcome", "check"]
