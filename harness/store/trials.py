"""The trials of hyperparameter studies, one row each: a resumed study continues from them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from harness.errors import UserError
from harness.store.database import Database, retried
from harness.store.tables import TUNE_TRIALS


class Trials(Database):
    """Trials of studies by number. A later write of a number replaces the earlier one."""

    @retried
    def trials(self, study: str) -> dict[int, dict[str, Any]]:
        """The trials of a study, by number."""
        query = sa.select(TUNE_TRIALS).where(TUNE_TRIALS.c.study == study).order_by(TUNE_TRIALS.c.number)
        return {
            row["number"]: self._body(study, row["number"], row["body"]) for row in self._select(query, TUNE_TRIALS)
        }

    def _body(self, study: str, number: int, body: str) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except (ValueError, TypeError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        raise UserError(
            f"The store {self.shown} has a damaged trial {number} of the study {study}; restore a copy, or take another "
            "sampler seed to begin a new study."
        )

    @retried
    def keep_trial(self, study: str, number: int, body: dict[str, Any]) -> None:
        text = json.dumps(body, allow_nan=False)
        place = (TUNE_TRIALS.c.study == study) & (TUNE_TRIALS.c.number == number)
        with self._write() as connection:
            TUNE_TRIALS.create(connection, checkfirst=True)
            if not connection.execute(sa.update(TUNE_TRIALS).where(place).values(body=text)).rowcount:
                connection.execute(sa.insert(TUNE_TRIALS).values(study=study, number=number, body=text))
