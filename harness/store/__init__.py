"""Records of finished stages in one SQL database; their weights are files in the artifact storage. No torch."""

from harness.store.database import DEFAULT_URL, SCHEMA_VERSION
from harness.store.exchange import merge
from harness.store.records import LEASE_SECONDS, RENEW_SECONDS, Grant, Owner, Store, StoredRequest, StoredSeal

__all__ = [
    "DEFAULT_URL",
    "LEASE_SECONDS",
    "RENEW_SECONDS",
    "SCHEMA_VERSION",
    "Grant",
    "Owner",
    "Store",
    "StoredRequest",
    "StoredSeal",
    "merge",
]
