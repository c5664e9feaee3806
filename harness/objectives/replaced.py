"""Objectives on replaced tokens: an auxiliary network fills masked positions, the encoder detects (ELECTRA) or corrects
(COCO-LM) what was replaced, and COCO-LM contrasts the corrupted sequence with a crop of the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.auxiliary import Auxiliary
from harness.encoders.models.batch import Batch
from harness.encoders.tokens import Examples, Tokens, joined
from harness.methods.coco_lm import CocoLm
from harness.methods.electra import Auxiliary as AuxiliaryMethod
from harness.objectives.base import Draw, TrainingObjective, draw_linear, embedding_std, mean_over_groups
from harness.objectives.losses import corrective_lm, masked_lm, replaced_token_detection, sequence_contrastive
from harness.objectives.masked import all_but_first, predicting
from harness.objectives.masking import crop, select_fixed


class AuxiliaryMaskedLM(TrainingObjective):
    """MLM of an auxiliary network with embeddings of its own, the encoder left as it is: what COCO-LM's 'converged
    auxiliary' is trained with beforehand. A fixed count of tokens is masked, special ones too except the first, always
    by the mask (COCO-LM, appendix D)."""

    params: AuxiliaryMethod
    auxiliary: Auxiliary | None

    def build(self) -> None:
        self.weights = {"auxiliary_mlm": 1.0}
        self.auxiliary = self.make_auxiliary(shared=False)
        self.encoder.requires_grad_(False)

    def make_auxiliary(self, *, shared: bool) -> Auxiliary:
        layers, hidden = self.params.auxiliary_shape(self.encoder.shape)
        initial: Literal["encoder", "random"] = "encoder" if self.params.auxiliary == "shallow" else "random"
        return Auxiliary(self.encoder, layers=layers, hidden=hidden, initial=initial, shared=shared, seed=self.seed)

    def parts(self) -> dict[str, Tensor]:
        return {} if self.auxiliary is None else self.auxiliary.parts()

    def mask(self, tokens: Tokens, draw: Draw) -> tuple[NDArray[np.bool_], Tokens]:
        """(which tokens are masked [T], the tokens with the mask there)."""
        assert self.vocabulary.mask_id is not None
        rounding, uniforms = draw("mask_count").random(len(tokens)), draw("mask", 0).random(len(tokens.ids))
        selected = select_fixed(all_but_first(tokens), tokens.lengths, self.params.p_m, uniforms, rounding)
        return selected, replace(tokens, ids=np.where(selected, np.int32(self.vocabulary.mask_id), tokens.ids))

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        selected, masked = self.mask(examples.tokens, draw)
        return Batch(masked, examples.owner, placed=predicting(examples.tokens, selected))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"auxiliary_mlm": self.masked_term(self.auxiliary_logits(batch), batch)}

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"auxiliary_mlm": batch.num_predicted}

    def auxiliary_logits(self, batch: Batch) -> Tensor:
        """[M, V]: the auxiliary network's at the masked positions, with dropout while it trains."""
        assert self.auxiliary is not None
        return self.auxiliary.logits(self.auxiliary(batch, batch["where"]))


SAMPLED_AT_ONCE = 512
"""Rows of an [M, V] distribution in double precision that are in memory at once."""


class ReplacedTokens(AuxiliaryMaskedLM):
    """COCO-LM (equation 4): the auxiliary network's MLM + corrective LM + sequence contrast. Its binary loss alone is ELECTRA."""

    params: CocoLm
    """Or `Electra`, which has of it what is read here."""

    def build(self) -> None:
        params, replacements = self.params, self.params.replacements
        self.auxiliary = None
        if replacements != "random":
            self.auxiliary = self.make_auxiliary(shared=replacements == "auxiliary")
            self.auxiliary.requires_grad_(replacements == "auxiliary")
        if replacements == "auxiliary":
            self.weights["auxiliary_mlm"] = 1.0
        if params.rtd:
            self.weights["rtd"] = params.lambda_copy
        if params.lm != "none":
            self.weights["lm"] = 1.0
        if params.contrast:
            self.weights["contrast"] = 1.0
        # Equation for p_copy: w . h without a bias, on the states themselves.
        layer = nn.Linear(self.encoder.hidden_size, 1, bias=False)
        self.detector = draw_linear(layer, self.encoder, self.seed, "detector")

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        if "auxiliary" in parts and self.auxiliary is not None:
            self.auxiliary.load_parts(tensors)

    def parts(self) -> dict[str, Tensor]:
        return {}  # the auxiliary network is discarded after training (section 3.1)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        """The masked view, whose main sequences are the texts, followed by their crops where they are contrasted. The ids at the masked positions are
        `drawn`, or samples of the auxiliary network's distribution at these uniforms."""
        tokens, crop_ratio = examples.tokens, self.params.crop
        selected, masked = self.mask(tokens, draw)
        count, words = np.count_nonzero(selected), self.auxiliary is None
        drawn: NDArray[Any] = np.zeros(len(selected), np.int64 if words else np.float64)
        if words:
            drawn[selected] = draw("random_replacement").integers(0, self.vocabulary.size, count)
        else:
            drawn[selected] = draw("replacement").random(count)
        main, owner = tokens, examples.owner
        if crop_ratio:
            kept, lengths = crop(tokens.lengths, crop_ratio, draw("crop").random(len(tokens)))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            main = joined(tokens, Tokens(tokens.ids[kept], tokens.types[kept], tokens.special[kept], offsets))
            owner = np.tile(owner, 2)
        return Batch(masked, examples.owner, placed=predicting(tokens, selected, drawn=drawn), main=Batch(main, owner))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        params, terms, logits = self.params, dict[str, Tensor](), None
        if "auxiliary_mlm" in self.weights:
            logits = self.auxiliary_logits(batch)
            terms["auxiliary_mlm"] = self.masked_term(logits, batch)
        main, original = self.replace(batch, logits if params.sampling_dropout else None)
        hidden, ids, rows = self.encoder(main), main.ids[: len(original)], batch.shape[0]
        first, states = hidden.index_select(0, main.first), hidden[: len(original)]
        self.measure("embedding_std", embedding_std, first[:rows])
        copied = self.detector(states)[:, 0]
        if params.rtd:
            real = batch.real_tokens[None]
            terms["rtd"] = replaced_token_detection(copied[None], original[None], ids[None], real)
        if params.lm != "none":
            terms["lm"] = self.correct(states, copied, original, ids, batch)
        if params.contrast:
            terms["contrast"] = self.contrast(first[:rows], first[rows:], batch)
        return terms

    def counts(self, batch: Batch) -> dict[str, float]:
        tokens, words = len(batch.tokens.ids), batch.num_predicted
        lm = tokens if self.params.lm == "all_token" else words
        return {"auxiliary_mlm": words, "rtd": tokens, "lm": lm, "contrast": len(batch.tokens)}

    def replace(self, batch: Batch, logits: Tensor | None = None) -> tuple[Batch, Tensor]:
        """(what the encoder reads: the corrupted view and behind it the cropped one, the original ids of the former [T]).
        `logits`: as in `sample`."""
        assert batch.main is not None
        main, where, size = batch.main, batch["where"], len(batch.ids)
        replacements = batch.at_predicted("drawn") if self.auxiliary is None else self.sample(batch, logits)
        original = main.ids[:size]
        if batch.counted is not None:
            replacements = torch.where(batch.counted, replacements, original.index_select(0, where))
        corrupted = original.index_copy(0, where, replacements)
        return replace(main, arrays={**main.arrays, "ids": torch.cat([corrupted, main.ids[size:]])}), original

    @torch.no_grad()
    def sample(self, batch: Batch, logits: Tensor | None = None) -> Tensor:
        """Replacements [M] drawn from the auxiliary network's distribution at the masked positions by inverting its cumulative
        distribution at the batch's uniforms: a stream of its own decides, not torch's generator. `logits` [M, V]: of the pass that trains the
        network, dropout included (ELECTRA); None for a pass without dropout (COCO-LM 3.3)."""
        assert self.auxiliary is not None
        where, uniforms, training = batch["where"], batch.at_predicted("drawn"), self.auxiliary.training
        self.auxiliary.eval()
        states = self.auxiliary(batch, where) if logits is None else logits
        drawn = [torch.empty(0, dtype=torch.long, device=where.device)]
        for start in range(0, len(where), SAMPLED_AT_ONCE):
            rows = slice(start, start + SAMPLED_AT_ONCE)
            some = self.auxiliary.logits(states[rows]) if logits is None else states[rows]
            cumulative, u = some.double().softmax(dim=1).cumsum(dim=1), uniforms[rows]
            place = torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True)
            drawn.append(place[:, 0].clamp(max=cumulative.shape[1] - 1))
        self.auxiliary.train(training)
        return torch.cat(drawn)

    def correct(self, states: Tensor, copied: Tensor, original: Tensor, ids: Tensor, batch: Batch) -> Tensor:
        """The LM loss in the form that `lm` names, from states [T, d], copy logits, original and corrupted ids [T]."""
        where, counted = batch["where"], batch.counted
        if self.params.lm == "all_token":
            where = torch.arange(len(ids), device=where.device)
            counted = batch.real_tokens if batch.width else None
        words = self.encoder.embedding_logits(states.index_select(0, where))
        targets = original.index_select(0, where)
        if self.params.lm == "softmax":
            return masked_lm(words, targets, counted)
        same = ids.index_select(0, where) == targets
        stop_gradient = self.params.stop_gradient
        return corrective_lm(copied.index_select(0, where), words, targets, same, counted, stop_gradient=stop_gradient)

    def contrast(self, corrupted: Tensor, cropped: Tensor, batch: Batch) -> Tensor:
        """Of first tokens [B, d]."""
        if batch.gather:
            corrupted, cropped = batch.gather(torch.stack([corrupted, cropped], dim=1)).unbind(dim=1)
        temperature = self.params.temperature
        return mean_over_groups(
            len(corrupted),
            self.params.contrast_group,
            lambda rows: sequence_contrastive(corrupted[rows], cropped[rows], temperature=temperature),
        )
