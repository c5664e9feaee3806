"""The tasks, where text comes from, split protocols, subsets, corpora and metrics. No torch, no ray."""
