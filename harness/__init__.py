"""harness: contrastive objectives for language encoders, trained and compared under one protocol."""

__version__ = "0.1.0"
