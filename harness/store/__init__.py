"""What is kept of finished work, in one SQL database with the weights of stages as files beside it. No torch.

tables        the tables
database      one open database and its transactions
retry         errors as sentences; retries of calls during a transient outage of the database
leases        who trains a stage now
records       the store: records and run labels under the leases' guard
requests      what was asked of a bench or a study
integrity     whether a record is what was committed
translations  back-translations, made once
trials        what a study of hyperparameters asked and found
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
