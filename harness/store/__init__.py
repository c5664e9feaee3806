"""Records of finished stages in one SQL database; their weights are files in the artifact storage. No torch.

tables        the tables
database      one open database and its transactions
retry         errors as sentences; retries of calls during a transient outage of the database
leases        who trains a stage now
records       the store: records and run labels under the leases' guard
requests      the requests of benches and studies
integrity     whether a record is as it was committed
translations  back-translations, each made once
trials        the trials of hyperparameter studies
"""

from harness.store.database import DEFAULT_URL, SCHEMA_VERSION, has_password, masked
from harness.store.leases import LEASE_SECONDS, RENEW_SECONDS, Grant, Owner, process_of
from harness.store.records import Damage, Speed, Store
from harness.store.requests import StoredRequest

__all__ = [
    "DEFAULT_URL",
    "LEASE_SECONDS",
    "RENEW_SECONDS",
    "SCHEMA_VERSION",
    "Damage",
    "Grant",
    "Owner",
    "Speed",
    "Store",
    "StoredRequest",
    "has_password",
    "masked",
    "process_of",
]
