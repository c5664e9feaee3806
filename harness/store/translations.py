"""Back-translations, by the digest of the text and its translator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from harness.store.database import Database, parts, retried
from harness.store.tables import TRANSLATIONS


class Translations(Database):
    """Texts by key. The first text of a key is final."""

    @retried
    def translations(self, keys: Sequence[str]) -> dict[str, str]:
        """The texts of those keys that have one."""
        found: dict[str, str] = {}
        for part in parts(keys):
            rows = self._select(sa.select(TRANSLATIONS).where(TRANSLATIONS.c.digest.in_(part)), TRANSLATIONS)
            found.update((row["digest"], row["text"]) for row in rows if isinstance(row["text"], str))
        return found

    @retried
    def keep_translations(self, texts: Mapping[str, str]) -> None:
        """Keep texts by key, all or none; a key that has a text keeps it."""
        if not texts:
            return
        with self._write() as connection:
            TRANSLATIONS.create(connection, checkfirst=True)
            for part in parts(texts):
                query = sa.select(TRANSLATIONS.c.digest).where(TRANSLATIONS.c.digest.in_(part))
                known = set(connection.execute(query).scalars())
                new = [{"digest": key, "text": texts[key]} for key in part if key not in known]
                if new:
                    connection.execute(sa.insert(TRANSLATIONS), new)
