"""Pre-trained encoders: where they come from and what identifies them (no torch here), and the model that runs them."""

from harness.encoders.packaged import PACKAGED, SIZES, HeadTraining, Size
from harness.encoders.sources import Located, adapted, locate, with_weights

__all__ = ["PACKAGED", "SIZES", "HeadTraining", "Located", "Size", "adapted", "locate", "with_weights"]
