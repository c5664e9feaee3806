"""The only place that imports ray: the session, the ledger actor, the pool of the bench, and Ray Train's wrapper."""
