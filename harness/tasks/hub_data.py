"""Data sets of the Hugging Face hub by name: hub:OWNER/NAME[:CONFIG][@REVISION].

`datasets` finds the files of each split, as its users know it: from the data set's card, or from the names of files and folders.
Parquet and JSONL files are then read as they are from the hub client's cache. What is in another format `datasets` writes once
as Arrow files into its own cache. What was found is kept beside the cache, so that the next command asks for nothing, and
without @REVISION what was once found stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError, unknown
from harness.hub import HUB, Repository, parsed
from harness.paths import read_json, write_json

CONVERTED = "refs/convert/parquet"
"""Branch of the hub with its own Parquet copy of a data set, for those that a script makes, which is not run."""
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
    """The data set `name`; asks the hub for its files with `download`, unless they are known.

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
            raise there.not_fetched(str(there))
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
        if builder is None and there.revision is None:
            copy = replace(there, revision=CONVERTED)
            at = replace(copy, revision=copy.commit())
            builder = _builder(at, config)
        if builder is None:
            raise UserError(f"{at.where}: {at} has no files that hold a table; {at.otherwise}.")
        if not builder.config.data_files:  # `datasets` took its latest cached version, of whatever revision
            raise ConnectionError("the hub failed while its files were listed")
        splits = {
            str(split): [_inside(at, file) for file in files] for split, files in builder.config.data_files.items()
        }
        if any("partial-" in file for files in splits.values() for file in files):
            raise UserError(f"{at.where}: the hub holds only a part of {at} as Parquet; {at.otherwise}.")
        if not all(file.endswith(READ_AS_IT_IS) for files in splits.values() for file in files):
            builder.download_and_prepare(verification_mode="no_checks")
            made = builder.as_dataset()
            splits = {str(split): [file["filename"] for file in data.cache_files] for split, data in made.items()}
    except UserError:
        raise
    except datasets.exceptions.DatasetsError as error:
        reason = " ".join(str(error.__cause__ or error).split())[:160].rstrip(".")
        raise UserError(
            f"{at.where}: {at} holds files that are not read as a table ({reason}); {at.otherwise}."
        ) from None
    except Exception as error:  # of `datasets`, the hub's client, its HTTP library, a reader of a format or the disk
        raise at.failed(error) from None
    features = builder.info.features or {}
    names = {name: list(each.names) for name, each in features.items() if hasattr(each, "names")}
    return {"revision": at.revision, "splits": splits, "names": names}


def _builder(at: Repository, config: str | None) -> Any:
    """What `datasets` makes of a repository at a commit; None where it finds no data files in it."""
    import datasets
    from datasets.data_files import EmptyDatasetError
    from huggingface_hub import DatasetCard

    try:
        known = datasets.get_dataset_config_names(at.name, revision=at.revision)
    except (RuntimeError, EmptyDatasetError, datasets.exceptions.DataFilesNotFoundError):
        return None  # RuntimeError: a script makes it
    card = at.cached("README.md")
    if known != ["default"] or (card and DatasetCard.load(card).data.get("configs")):
        chosen = config or datasets.get_dataset_default_config_name(at.name, revision=at.revision)
        if chosen is None:
            raise _several(at, known)
        if chosen not in known:
            raise unknown("configuration", chosen, known, at.where)
        return datasets.load_dataset_builder(at.name, chosen, revision=at.revision)
    # None is declared: folders are configurations, and `datasets` would read them as one.
    builder = datasets.load_dataset_builder(at.name, revision=at.revision)
    found = builder.config.data_files or {}
    files = [Path(_inside(at, file)) for each in found.values() for file in each]
    splits = {"data", *map(str, found)}
    folders = {"/".join(part for part in file.parts[:-1] if part not in splits) for file in files}
    if config is None and len(folders) > 1:
        raise _several(at, folders)
    if config in (None, "default"):
        return builder
    if not any(config in file.parts[:-1] for file in files):
        raise unknown("configuration", config, folders, at.where)
    return datasets.load_dataset_builder(at.name, data_dir=config, revision=at.revision)


def _inside(at: Repository, url: Any) -> str:
    return str(url).removeprefix(f"hf://datasets/{at.name}@{at.revision}/")


def _several(at: Repository, configs: Iterable[str]) -> UserError:
    names = ", ".join(sorted(configs))
    return UserError(f"{at.where}: name one of the configurations of {at} ({names}): {HUB}OWNER/NAME:CONFIG.")
