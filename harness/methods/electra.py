"""ELECTRA: replaced token detection, an auxiliary network fills masked positions and the encoder tells originals from
replacements (Clark et al., ICLR 2020), as COCO-LM pre-trains it for its comparison (section 3.1).

Deviations. The setting is COCO-LM's "ELECTRA (Ours)", by the rows of docs/papers.md that `decisions` names; one linear layer without bias
decides (ELECTRA has a hidden layer before it). `auxiliary: narrow` is ELECTRA's generator, as deep as the encoder and a third as wide, in whole
attention heads (256 of 768), with random weights. `shallow` is COCO-LM's, a third of the layers at full width, which begin as copies of the encoder's
first ones, MLM head included (the paper starts both from random weights, and a copy of random weights is one more random start); of large++ a quarter
(section 3.3), which the encoder's size says.
"""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.encoders.families import family_of
from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.methods.base import Method
from harness.methods.definition import Config, Definition, StepSize

Network = Annotated[
    Literal["shallow", "narrow"],
    Field(description="a third of the layers at full width, or all layers at a third of the width"),
]


class Auxiliary(Definition):
    """What fills masked positions by an auxiliary network."""

    retired: ClassVar = {"auxiliary_layers": 0}

    p_m: float = Field(0.15, gt=0, le=1, description="share of the tokens that is masked and filled")
    auxiliary: Network = "shallow"

    @property
    def has_network(self) -> bool:
        return True

    def auxiliary_shape(self, config: Config) -> tuple[int, int]:
        """(layers, hidden size) of the auxiliary network."""
        layers, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
        if self.auxiliary == "shallow":
            return config.get("auxiliary_layers") or max(1, math.ceil(layers / 3)), hidden
        head = hidden // int(config.get("num_attention_heads", max(1, hidden // 64)))
        return layers, max(1, round(hidden / 3 / head)) * head

    def auxiliary_flops(self, config: Config, size: StepSize, passes: float) -> float:
        layers, hidden = self.auxiliary_shape(config)
        words = config.get("embedding_size") or config["hidden_size"]
        small = {**config, "num_hidden_layers": layers, "hidden_size": hidden, "head_width": words}
        if hidden != config["hidden_size"]:
            small |= {"intermediate_size": 4 * hidden}
        return passes * (forward_flops(small, size.tokens, size.squares) + mlm_head_flops(small, size.predicted))

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=self.p_m)

    def refused(self, config: Config) -> str | None:
        """The auxiliary network is made of the encoder's own layers."""
        family = family_of(config)
        if not self.has_network or family.transform is not None:
            return None
        return f"an auxiliary network cannot be made of {family.title}'s layers; use a BERT, RoBERTa or ELECTRA encoder"

    @property
    def mlm_head(self) -> bool:
        """An auxiliary network has a copy of the encoder's head."""
        return self.has_network

    @property
    def inherits(self) -> tuple[str, ...]:
        """Only a shallow network starts with the encoder's head; the weights of a narrow one are random."""
        return ("mlm_head",) if self.has_network and self.auxiliary == "shallow" else ()


class Electra(Auxiliary, Method):
    name = "electra"
    title = "ELECTRA"
    full_name = "replaced token detection"
    citation = "Clark et al., ELECTRA, ICLR 2020, as run in Meng et al., COCO-LM, 2021"
    network = "replaced:ReplacedTokens"
    neutral: ClassVar = {"sampling_dropout": False}
    replacements: ClassVar = "auxiliary"
    crop: ClassVar = 0.0
    rtd: ClassVar = True
    lm: ClassVar = "none"
    contrast: ClassVar = False
    decisions = ("L2", "L6", "L7", "L8", "L9", "L10", "L13", "L14")

    auxiliary: Network = "narrow"
    lambda_rtd: float = Field(50.0, gt=0, allow_inf_nan=False, description="weight of the binary loss")
    sampling_dropout: bool = Field(
        False, description="replacements from the very pass that trains the auxiliary network, dropout included"
    )

    @property
    def lambda_copy(self) -> float:
        """What COCO-LM calls it."""
        return self.lambda_rtd

    def flops(self, config: Config, size: StepSize) -> float:
        """The encoder reads what the auxiliary network filled in, which samples in a pass of its own unless that has dropout."""
        encoder = TRAIN * forward_flops(config, size.encoded, size.encoded_squares)
        return encoder + self.auxiliary_flops(config, size, TRAIN + (not self.sampling_dropout))
