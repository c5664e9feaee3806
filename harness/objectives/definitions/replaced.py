"""Objectives with an auxiliary network, which fills masked positions: ELECTRA, COCO-LM, and the training of the network alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from harness.encoders.families import family_of
from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.objectives.definitions.base import Config, Definition, StepSize, narrow_embeddings
from harness.specs import Objective


@dataclass(frozen=True, kw_only=True)
class AuxiliaryDefinition(Definition):
    """`auxiliary`: 'shallow' has a third of the encoder's layers at full width, which begin as the encoder's first ones, or the number
    that the encoder's size gives (COCO-LM section 3.3: a quarter in large++); 'narrow' all of them at a third of the width, in whole
    heads (ELECTRA's 256 of 768); 'none' where there is no network."""

    retired: ClassVar = {"auxiliary_layers": 0}

    p_m: float
    auxiliary: Literal["shallow", "narrow", "none"]

    def auxiliary_shape(self, config: Config) -> tuple[int, int]:
        """(layers, hidden size) of the auxiliary network."""
        layers, hidden = int(config["num_hidden_layers"]), int(config["hidden_size"])
        if self.auxiliary == "shallow":
            return config.get("auxiliary_layers") or max(1, math.ceil(layers / 3)), hidden
        head = hidden // int(config.get("num_attention_heads", max(1, hidden // 64)))
        return layers, max(1, round(hidden / 3 / head)) * head

    def auxiliary_flops(self, config: Config, size: StepSize, passes: float) -> float:
        """Of so many forward passes of the auxiliary network."""
        layers, hidden = self.auxiliary_shape(config)
        words = config.get("embedding_size") or config["hidden_size"]
        small = {**config, "num_hidden_layers": layers, "hidden_size": hidden, "head_width": words}
        if hidden != config["hidden_size"]:
            small |= {"intermediate_size": 4 * hidden}
        return passes * (forward_flops(small, size.tokens, size.squares) + mlm_head_flops(small, size.predicted))

    def expected(self, rows: float, length: float) -> StepSize:
        return StepSize.of(rows, length, predicted=self.p_m)

    def unmet(self, config: Config) -> str | None:
        """The auxiliary network is made of the encoder's own layers."""
        if self.auxiliary == "none":
            return None
        family = family_of(config)
        if family.transform is None:
            return f"an auxiliary network cannot be made of {family.title}'s layers; use a BERT, RoBERTa or ELECTRA encoder"
        return None

    @property
    def mlm_head(self) -> bool:
        """An auxiliary network has a copy of the encoder's head."""
        return self.auxiliary != "none"

    @property
    def inherits(self) -> tuple[str, ...]:
        """Only a shallow network starts with the encoder's head; the weights of a narrow one are random."""
        return ("mlm_head",) if self.auxiliary == "shallow" else ()


@dataclass(frozen=True, kw_only=True)
class AuxiliaryMlmDefinition(AuxiliaryDefinition):
    """Trains COCO-LM's 'converged auxiliary' network before the encoder."""

    name = "auxiliary_mlm"
    version = 1
    module = "AuxiliaryMaskedLM"

    def flops(self, config: Config, size: StepSize) -> float:
        return self.auxiliary_flops(config, size, TRAIN)


@dataclass(frozen=True, kw_only=True)
class ElectraDefinition(AuxiliaryDefinition):
    """`sampling_dropout`: replacements come from the pass that trains the auxiliary network, dropout included."""

    name = "electra"
    version = 1
    module = "ReplacedTokenDetection"
    replacements: ClassVar = "auxiliary"
    crop_ratio: ClassVar = 0.0

    lambda_rtd: float
    sampling_dropout: bool = False

    def flops(self, config: Config, size: StepSize) -> float:
        """The encoder reads what the auxiliary network filled in, which samples in a pass of its own unless that has dropout."""
        encoder = TRAIN * forward_flops(config, size.encoded, size.encoded_squares)
        return encoder + self.auxiliary_flops(config, size, TRAIN + (not self.sampling_dropout))


@dataclass(frozen=True, kw_only=True)
class CocoLmDefinition(AuxiliaryDefinition):
    """`replacements`: from the network that is trained along ('auxiliary'), from one that was trained before ('converged'), or uniformly
    from the vocabulary ('random', without a network). `lambda_copy`: weight of the binary loss `rtd`. `stop_gradient`: of a copy
    probability in the `lm` loss. The last three are the sequence contrast's."""

    name = "coco_lm"
    version = 1
    module = "CorrectiveContrast"
    retired: ClassVar = {"auxiliary_layers": 0, "projection": False}
    sampling_dropout: ClassVar = False

    auxiliary: Literal["shallow", "narrow", "none"] = "none"
    replacements: Literal["auxiliary", "random", "converged"]
    rtd: bool
    lambda_copy: float = 0.0
    lm: Literal["mixture", "softmax", "all_token", "none"]
    stop_gradient: bool | None = None
    contrast: bool
    temperature: float = 0.0
    crop_ratio: float = 0.0
    contrast_group: int = 0

    @property
    def spec(self) -> Objective:
        found, of = super().spec, {"auxiliary_layers": self.auxiliary != "none", "projection": self.contrast}
        return replace(found, params={name: value for name, value in found.params.items() if of.get(name, True)})

    def flops(self, config: Config, size: StepSize) -> float:
        """As ELECTRA's, with an auxiliary network that is trained unless it has converged, and the LM loss."""
        total = TRAIN * forward_flops(config, size.encoded, size.encoded_squares)
        if self.replacements != "random":
            total += self.auxiliary_flops(config, size, 1.0 if self.replacements == "converged" else TRAIN + 1)
        if self.lm != "none":
            positions = size.tokens if self.lm == "all_token" else size.predicted
            total += TRAIN * 2.0 * positions * config["hidden_size"] * config["vocab_size"]
        return total

    def expected(self, rows: float, length: float) -> StepSize:
        """A corrupted view, and a crop of the text where it is contrasted."""
        size, kept = super().expected(rows, length), self.crop_ratio
        encoded, squares = size.tokens + kept * size.tokens, size.squares + kept * kept * size.squares
        return replace(size, encoded=encoded, encoded_squares=squares)

    def unmet(self, config: Config) -> str | None:
        """The corrective LM head is the word embeddings themselves."""
        narrow = narrow_embeddings(config) if self.lm != "none" else None
        missing = narrow and f"{narrow}, so the LM head cannot be the embeddings themselves; set coco_lm.lm to none"
        return super().unmet(config) or missing

    @property
    def inherits(self) -> tuple[str, ...]:
        return ("auxiliary",) if self.replacements == "converged" else super().inherits
