"""The methods that can be compared. A method is data: hyperparameters, a citation, and the chain of stages it makes."""

from harness.methods.base import Method, hyperparameters, warm_up_stage
from harness.methods.cmlm import CMLM
from harness.methods.ft import FT
from harness.methods.scl import SCL
from harness.methods.tapt import TAPT

METHODS: dict[str, Method] = {method.name: method for method in (FT, SCL, TAPT, CMLM)}

__all__ = ["METHODS", "Method", "hyperparameters", "warm_up_stage"]
