"""Records of finished stages in one SQL database; their weights are files in the artifact storage. No torch."""

from harness.store.database import DEFAULT_URL
from harness.store.exchange import merge
from harness.store.records import Owner, Store, StoredRequest, StoredSeal

__all__ = ["DEFAULT_URL", "Owner", "Store", "StoredRequest", "StoredSeal", "merge"]
