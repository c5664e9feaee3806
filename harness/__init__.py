"""harness: contrastive objectives for language encoders, trained and compared on one footing."""

__version__ = "0.1.0"
