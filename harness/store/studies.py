"""Optuna's own tables in the database of the runs: a study is in them, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from harness.errors import UserError, first_line
from harness.store.records import Store

if TYPE_CHECKING:
    import optuna


@contextmanager
def database_errors(store: Store) -> Iterator[None]:
    """Optuna's database errors as one sentence."""
    import optuna

    try:
        yield
    except (optuna.exceptions.StorageInternalError, optuna.exceptions.DuplicatedStudyError, SQLAlchemyError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, DBAPIError):
            with store.as_user_error():
                raise cause from None
        raise UserError(
            f"The store {store.shown} refused the study ({first_line(cause)}); recorded stages are kept."
        ) from None


def storage_of(store: Store) -> optuna.storages.RDBStorage:
    """Optuna's storage in the store's database, with its tables."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options = {"connect_args": {"timeout": 30.0}} if store.path else {"pool_pre_ping": True}
    url = store.url.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    for last in (False, False, False, True):  # another command may create the tables: the next attempt finds them
        with suppress(*() if last else (UserError,)), database_errors(store):
            return optuna.storages.RDBStorage(url, engine_kwargs=options, skip_compatibility_check=True)
        time.sleep(0.5)
    raise AssertionError("the last attempt returns or raises")


def delete_study(store: Store, name: str) -> None:
    """Delete Optuna's study of this name, if there is one."""
    import optuna

    if name in store.studies():
        with database_errors(store):
            optuna.delete_study(study_name=name, storage=storage_of(store))


def begun_study(store: Store, name: str) -> optuna.Study | None:
    """A study that some command has begun; None, and nothing is written, where there is none. Raises UserError for a damaged one."""
    import optuna

    if name not in store.studies():
        return None
    with database_errors(store):
        study = optuna.load_study(study_name=name, storage=storage_of(store))
        try:
            study.get_trials(deepcopy=False)
        except (LookupError, TypeError, ValueError) as error:  # a store of somebody else's
            raise UserError(
                f"The study {name} of the store {store.shown} is damaged ({first_line(error)}); restore a copy of it."
            ) from None
    return study


def take_studies(target: Store, source: Store) -> list[str]:
    """Take over every study that `target` lacks or has less of. One that went another way there stays as it is: these are returned."""
    import optuna

    differ = []
    for name in source.studies():
        theirs, ours = begun_study(source, name), begun_study(target, name)
        assert theirs is not None
        there, here = _told(theirs), _told(ours) if ours else []
        if any(mine != other for mine, other in zip(here, there, strict=False)):
            differ.append(name)
        elif len(here) < len(there) or not ours:
            delete_study(target, name)
            with database_errors(target):
                optuna.copy_study(from_study_name=name, from_storage=storage_of(source), to_storage=storage_of(target))
    return differ


def _told(study: optuna.Study) -> list[Any]:
    """How the trials of a study that have ended did."""
    every = study.get_trials(deepcopy=False)
    return [(trial.number, trial.params, trial.state, trial.values) for trial in every if trial.state.is_finished()]
