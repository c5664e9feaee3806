"""The Hugging Face hub: all requests of the harness, and one sentence for each way in which one can fail.

The client's own settings hold: HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME, HF_TOKEN. What was fetched once is read from the client's
cache without a request. A hub that cannot be reached gets one request a minute: the client's five retries take 23 s a file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from harness.errors import NotAtHand, NotFetched, UserError

HUB = "hub:"
"""How the name of a data set begins: hub:OWNER/NAME[:CONFIG][@REVISION]."""
_NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)(?::([^@:]+))?(?:@(\S+))?")


def parsed(name: str) -> tuple[str, str | None, str | None]:
    """(OWNER/NAME, configuration, revision) of a data set's name. Raises UserError."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise UserError(f"{name}: is not a data set of the hub; write {HUB}OWNER/NAME[:CONFIG][@REVISION].")
    repository, config, revision = parts.groups()
    return str(repository), config, revision


def unreachable() -> str:
    """Why the hub cannot be reached; empty when any answer came back within 5 s during this minute."""
    from huggingface_hub import is_offline_mode

    return "HF_HUB_OFFLINE is set" if is_offline_mode() else _probe(int(time.monotonic() / 60))


@lru_cache(maxsize=1)
def _probe(minute: int) -> str:
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5.0)
    except Exception as error:  # the client's HTTP library differs between versions (httpx, httpx2)
        return f"{constants.ENDPOINT}: {error}"
    return ""


def is_id(name: str) -> bool:
    """Whether the hub could have a repository of this name."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        try_to_load_from_cache(name, "config.json")  # checks its arguments; reads at most a folder's names
    except HFValidationError:
        return False
    return True


@dataclass(frozen=True)
class Repository:
    """A repository of the hub. `where` begins its errors; `otherwise`: what to do where the hub cannot be reached."""

    kind: Literal["model", "dataset"]
    name: str
    where: str
    otherwise: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{'model' if self.kind == 'model' else 'data set'} {self.name}"

    @property
    def _at(self) -> dict[str, Any]:
        return {"revision": self.revision, "repo_type": self.kind}

    def fetch(self, file: str, *, download: bool = True) -> Path:
        """A file, from the cache or else, where it may be asked, the hub. Raises NotAtHand or UserError, see `failed`."""
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        path = try_to_load_from_cache(self.name, file, **self._at)
        if isinstance(path, str):
            return Path(path)
        if not download:
            raise self.not_fetched(file)
        with self._asking(file):
            return Path(hf_hub_download(self.name, file, **self._at))

    def cached_snapshot(self, patterns: Sequence[str]) -> Path | None:
        """A folder with the cached files of these patterns; None where there is none. Makes no request."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        with suppress(HfHubHTTPError, OSError):  # not there, or not whole
            return Path(snapshot_download(self.name, allow_patterns=[*patterns], local_files_only=True, **self._at))
        return None

    def snapshot(self, patterns: Sequence[str]) -> Path:
        """A folder with the files of these patterns, fetched where they are new. Raises NotAtHand or UserError, see `failed`."""
        from huggingface_hub import snapshot_download

        with self._asking():
            return Path(snapshot_download(self.name, allow_patterns=[*patterns], **self._at))

    def commit(self) -> str:
        """The commit that the revision stands for now. Raises NotAtHand or UserError, see `failed`; also where files are not given.

        Anyone may see the commit of a repository that asks for consent, hence the look at a file.
        """
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import RemoteEntryNotFoundError

        with self._asking():
            info = HfApi().repo_info(self.name, timeout=10.0, **self._at)
            with suppress(RemoteEntryNotFoundError):
                hf_hub_download(self.name, "README.md", revision=info.sha, repo_type=self.kind)
        return str(info.sha)

    @contextmanager
    def _asking(self, file: str = "") -> Iterator[None]:
        """Inside, the hub is asked for the repository, or for a file of it. Raises NotAtHand or UserError, see `failed`."""
        if reason := unreachable():
            raise self.not_fetched(file, reason)
        try:
            yield
        except Exception as error:  # of the client, its HTTP library or the disk
            raise self.failed(error, file) from None

    def failed(self, error: Exception, file: str = "") -> UserError:
        """The sentence for what the hub's client, its HTTP library or the disk raised: none of them ours to tell apart."""
        from huggingface_hub import constants
        from huggingface_hub import errors as known

        page = f"{constants.ENDPOINT}/{'' if self.kind == 'model' else 'datasets/'}{self.name}"
        at = f" at {self.revision[:7]}" if self.revision else ""
        sentences: dict[type[Exception], str] = {
            known.LocalEntryNotFoundError: "",
            known.GatedRepoError: f"{self} asks for consent; give it on {page} and log in with `hf auth login`.",
            known.RepositoryNotFoundError: f"the hub has no {self} (or it is private); correct the name, or log in with `hf auth login`.",
            known.RevisionNotFoundError: f"{self} has no revision '{self.revision}'; name a branch, a tag or a commit of it.",
            known.EntryNotFoundError: f"{self} has no file {file}{at}; correct the split or the revision.",
        }
        sentences[known.HFValidationError] = sentences[known.RepositoryNotFoundError]
        if said := next((text for kind, text in sentences.items() if isinstance(error, kind)), ""):
            return UserError(f"{self.where}: {said}")
        return self.not_fetched(file, f"{type(error).__name__}: {error}")

    def not_fetched(self, file: str = "", reason: str = "") -> NotAtHand:
        """`reason`: why it cannot be fetched; '' where nobody tried."""
        short = " ".join(reason.split())[:160].rstrip(".")
        why = f" and cannot be fetched ({short}); connect, set HF_ENDPOINT to a mirror" if reason else ""
        fix = why or "; let the command that trains fetch it"
        kind, what = NotAtHand if reason else NotFetched, f"{file} of {self.name}" if file else str(self)
        return kind(f"{self.where}: {what} is not in the hub cache{fix}, or {self.otherwise}.")
