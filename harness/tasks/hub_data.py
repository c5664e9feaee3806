"""Data sets of the Hugging Face hub by name: hub:OWNER/NAME[:CONFIG][@REVISION].

`datasets` finds the files of each split, as its users know it: from the data set's card, or from the names of files and folders.
Parquet and JSONL files are then read as they are from the hub client's cache. What is in another format `datasets` writes once
as Arrow files into its own cache. What was found is kept beside the cache, so that the next command asks for nothing, and
without @REVISION what was once found stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError, unknown
from harness.hub import HUB, Repository, parsed
from harness.paths import read_json, write_json

READ_AS_IT_IS = (".parquet", ".jsonl", ".jsonl.gz", ".json.gz")
_FORMAT = 1


@dataclass(frozen=True)
class HubData:
    """A data set at one commit. `splits`: its files by split, paths in the repository, or of Arrow files on this machine.

    `names`: names of coded labels by column, as its card has them.
    """

    name: str
    there: Repository
    splits: Mapping[str, Sequence[str]]
    names: Mapping[str, Sequence[str]]

    def files(self, split: str, *, download: bool) -> Iterator[Path]:
        """The files of a split in order, one fetched after the other. Raises NotAtHand or UserError."""
        for file in self.splits[split]:
            yield Path(file) if os.path.isabs(file) else self.there.fetch(file, download=download)


def open_hub_data(name: str, where: str, otherwise: str, *, download: bool) -> HubData:
    """The data set `name`; asks the hub for its files with `download`, unless they are known. Where a data set declares no configurations, CONFIG
    is a folder.

    `where`, `otherwise`: see `Repository`. Raises NotAtHand where it is not known and not to be asked for, or the hub cannot
    be reached; UserError for a name that is none, a repository, revision or configuration that is not there, one that is not
    named among several, and for files that are no table.
    """
    from huggingface_hub import constants

    repository, config, revision = parsed(name)
    there = Repository("dataset", repository, where, otherwise, revision)
    place = Path(
        constants.HF_ASSETS_CACHE, "harness", "datasets", re.sub(r"[^\w.@-]", "--", name[len(HUB) :]) + ".json"
    )
    found = read_json(place, _FORMAT)
    made = [file for files in found.get("splits", {}).values() for file in files if os.path.isabs(file)]
    if not found or not all(map(os.path.exists, made)):
        if not download:
            raise there.not_fetched()
        found = _find(there, config)
        write_json(place, {"version": _FORMAT, **found})
    commit = found["revision"]
    label = f"{repository}{f':{config}' if config else ''}@{commit[:7]}"
    return HubData(label, replace(there, revision=commit), found["splits"], found["names"])


def _find(there: Repository, config: str | None) -> dict[str, Any]:
    """What is kept of a data set: commit, splits and names of labels. Raises NotAtHand or UserError."""
    import datasets

    at = replace(there, revision=there.commit())
    try:
        builder = _builder(at, config)
        if not builder.config.data_files:  # `datasets` took its latest cached version, of whatever revision
            raise ConnectionError("the hub failed while its files were listed")
        inside = f"hf://datasets/{at.name}@{at.revision}/"
        found = builder.config.data_files.items()
        splits = {str(split): [str(file).removeprefix(inside) for file in files] for split, files in found}
        if not all(file.endswith(READ_AS_IT_IS) for files in splits.values() for file in files):
            builder.download_and_prepare(verification_mode="no_checks")
            made = builder.as_dataset()
            splits = {str(split): [file["filename"] for file in data.cache_files] for split, data in made.items()}
    except UserError:
        raise
    except (datasets.exceptions.DatasetsError, datasets.data_files.EmptyDatasetError, RuntimeError) as error:
        # RuntimeError: a script makes it, and the hub's copy, where there is one, is on a branch of its own
        reason = " ".join(str(error.__cause__ or error).split())[:160].rstrip(".")
        raise UserError(
            f"{at.where}: {at} holds no files that are read as a table ({reason}); name its Parquet copy with @refs/convert/parquet, or "
            f"{at.otherwise}."
        ) from None
    except Exception as error:  # of `datasets`, the hub's client, its HTTP library, a reader of a format or the disk
        raise at.failed(error) from None
    features = builder.info.features or {}
    names = {name: list(each.names) for name, each in features.items() if hasattr(each, "names")}
    return {"revision": at.revision, "splits": splits, "names": names}


def _builder(at: Repository, config: str | None) -> Any:
    """What `datasets` makes of a repository at a commit."""
    import datasets

    known = datasets.get_dataset_config_names(at.name, revision=at.revision)
    if known == ["default"] and config not in (None, "default"):  # none is declared: a folder of it
        return datasets.load_dataset_builder(at.name, data_dir=config, revision=at.revision)
    chosen = config or datasets.get_dataset_default_config_name(at.name, revision=at.revision)
    if chosen is None:
        names = ", ".join(sorted(known))
        raise UserError(f"{at.where}: name one of the configurations of {at} ({names}): {HUB}OWNER/NAME:CONFIG.")
    if chosen not in known:
        raise unknown("configuration", chosen, known, at.where)
    return datasets.load_dataset_builder(at.name, chosen, revision=at.revision)
