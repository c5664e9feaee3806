"""The contract of methods and objectives: the laws that tests hold the built-in ones to, and `harness check` a file from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from harness.contract.law import BrokenLawError, require
from harness.contract.methods import OF_HYPERPARAMETER, OF_METHOD, alternatives, chain, effective_with
from harness.contract.objectives import OF_OBJECTIVE, bert_config, made, unread, write_bert
from harness.errors import UserError, first_line
from harness.methods import Method
from harness.objectives import definition_of
from harness.specs import Objective, Stage


class Outcome(NamedTuple):
    """A law in words, what it was held against, and how it is broken; '' where it holds."""

    law: str
    subject: str
    broken: str


def check(method: Method, source: str) -> Iterator[Outcome]:
    """The laws of a method, of its hyperparameters, and of the objectives that the file with this digest defines."""
    made = _held(its_stages_are_made, f"method {method.name}", method)
    if made.broken:
        yield made  # what every other law would say
        return
    for law in OF_METHOD:
        yield _held(law, f"method {method.name}", method)
    for name in method.Hyperparameters.model_fields:
        for of_name in OF_HYPERPARAMETER:
            yield _held(of_name, f"hyperparameter {name}", method, name)
    with TemporaryDirectory() as folder:
        bert = write_bert(Path(folder) / "bert")
        for stage in _stages(method):
            spec = stage.objective
            if spec.source != source or definition_of(spec).unmet(bert_config().to_dict()):
                continue
            make = partial(_made, bert, spec, stage.data.views)
            words = ", ".join(f"{name} {value}" for name, value in spec.params.items())
            for of_objective in OF_OBJECTIVE:
                yield _held(of_objective, f"objective {spec.name}{f' ({words})' if words else ''}", make)
            yield _held(all_its_parameters_are_read, f"objective {spec.name}", make, spec)


def its_stages_are_made(method: Method) -> None:
    chain(method)


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


def _stages(method: Method) -> Iterator[Stage]:
    """One stage for each objective at the defaults and at each value of a switch or a named choice: another number is the same code."""
    found: dict[str, Stage] = {}
    settings: list[dict[str, Any]] = [{}]
    with suppress(BrokenLawError, UserError):  # the laws of this hyperparameter have told it
        for name, info in method.Hyperparameters.model_fields.items():
            if info.annotation not in (int, float):
                beside = effective_with(method, name)
                settings += [{**beside, name: value} for value in alternatives(method, name)]
    for setting in settings:
        with suppress(UserError):  # so have they this one
            for stage in chain(method, **setting):
                found.setdefault(repr(stage.objective), stage)
    return iter(found.values())


def _held(law: Callable[..., None], subject: str, *arguments: Any) -> Outcome:
    broken = ""
    try:
        law(*arguments)
    except (BrokenLawError, UserError) as error:
        broken = str(error).rstrip(".")
    except (Exception, SystemExit) as error:  # whatever the file's code raises
        broken = f"{type(error).__name__}: {first_line(error)}"
    return Outcome(law.__name__.replace("_", " ").replace("context s", "context's"), subject, broken)


__all__ = ["BrokenLawError", "Outcome", "check"]
