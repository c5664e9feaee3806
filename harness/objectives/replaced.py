"""Objectives on replaced tokens: an auxiliary network fills masked positions, the encoder detects (ELECTRA) or corrects
(COCO-LM) what was replaced, and COCO-LM contrasts the corrupted sequence with a crop of the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.models.auxiliary import Auxiliary
from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import Examples, Tokens, joined
from harness.objectives import diagnostics
from harness.objectives.base import Draw, GlobalBatchContext, Measures, TrainingObjective, in_groups, named, on, owned
from harness.objectives.definitions.replaced import AuxiliaryDefinition, CocoLmDefinition, ElectraDefinition
from harness.objectives.losses import corrective_lm, masked_lm, replaced_token_detection, sequence_contrastive
from harness.objectives.masked import MaskedViews, all_but_first
from harness.objectives.masking import crop, select_fixed


class AuxiliaryMaskedLM(TrainingObjective):
    """MLM of an auxiliary network with embeddings of its own, the encoder left as it is: what COCO-LM's 'converged
    auxiliary' is trained with beforehand.

    A fixed count of tokens is masked, special ones too except the first, always by the mask (COCO-LM, appendix D).
    """

    params: AuxiliaryDefinition
    auxiliary: Auxiliary | None

    def build(self) -> None:
        self.weights = {"auxiliary_mlm": 1.0}
        self.auxiliary = self.make_auxiliary(shared=False)
        self.encoder.requires_grad_(False)

    def make_auxiliary(self, *, shared: bool) -> Auxiliary:
        layers, hidden = self.params.auxiliary_shape(self.encoder.shape)
        return Auxiliary(
            self.encoder,
            layers=layers,
            hidden=hidden,
            initial="encoder" if self.params.auxiliary == "shallow" else "random",
            shared=shared,
            seed=self.seed,
        )

    def set_dropout(self, probability: float) -> None:
        super().set_dropout(probability)
        if self.auxiliary is not None:
            self.auxiliary.set_dropout(probability)

    def parts(self) -> dict[str, Tensor]:
        return {} if self.auxiliary is None else self.auxiliary.parts()

    def mask(self, tokens: Tokens, draw: Draw) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """(masked positions [M], ids with the mask there [T])."""
        assert self.vocabulary.mask_id is not None
        rounding, uniforms = draw("mask_count").random(len(tokens)), draw("mask", 0).random(len(tokens.ids))
        selected = select_fixed(all_but_first(tokens), tokens.lengths, self.params.p_m, uniforms, rounding)
        where = np.flatnonzero(selected)
        ids = tokens.ids.copy()
        ids[where] = self.vocabulary.mask_id
        return where, ids

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> MaskedViews:
        tokens = examples.tokens
        where, ids = self.mask(tokens, draw)
        flops = self.step_flops(tokens, predicted=len(where))
        return MaskedViews(tokens, np.arange(len(tokens)), ids, None, flops, where, tokens.ids[where].astype(np.int64))

    def forward(self, batch: Batch, views: MaskedViews, measures: Measures | None = None) -> dict[str, Tensor]:
        where, targets = on(batch.ids.device, views.where, views.targets)
        return {"auxiliary_mlm": self.auxiliary_term(self.auxiliary_logits(batch, where), targets, measures)}

    def counts(self, views: MaskedViews) -> dict[str, float]:
        return {"auxiliary_mlm": len(views.where)}

    def auxiliary_logits(self, batch: Batch, where: Tensor) -> Tensor:
        """[M, V]: the auxiliary network's at the masked positions, with dropout while it trains."""
        assert self.auxiliary is not None
        return self.auxiliary.logits(self.auxiliary(batch, where))

    def auxiliary_term(self, logits: Tensor, targets: Tensor, measures: Measures | None) -> Tensor:
        if measures is not None:
            measures["auxiliary_accuracy"] = (logits.detach().argmax(dim=1) == targets).float().mean()
        return masked_lm(logits, targets)


@dataclass(frozen=True)
class ReplacedViews(MaskedViews):
    """`main`: the texts that the encoder reads, followed by their crops where these are contrasted. The ids at the masked
    positions [M] are `replacements`, or samples of the auxiliary network's distribution at `uniforms`."""

    main: Tokens
    uniforms: NDArray[np.float64] | None
    replacements: NDArray[np.int64] | None

    def cut(self, rows: slice) -> dict[str, Any]:
        inside = self.inside(rows)
        return super().cut(rows) | {
            "main": self.main.take(owned(np.resize(self.owner, len(self.main)), rows)),
            "uniforms": None if self.uniforms is None else self.uniforms[inside],
            "replacements": None if self.replacements is None else self.replacements[inside],
        }


@dataclass(frozen=True)
class Corrupted:
    """The corrupted view after the encoder: `states` [T, d]; `original` ids, corrupted `ids` and `masked` [T]; `where` [M], the
    positions that are masked, in ascending order; `first`, the states of its first tokens [B, d], and `first_cropped`, those of the
    cropped view ([0, d] without one); `global_batch`: what a micro-batch needs of the rest of the batch."""

    states: Tensor
    original: Tensor
    ids: Tensor
    masked: Tensor
    where: Tensor
    first: Tensor
    first_cropped: Tensor
    global_batch: GlobalBatchContext | None = None


class _Replaced(AuxiliaryMaskedLM):
    """What ELECTRA and COCO-LM share: the masked view, its replacements, and the corrupted view for the encoder.

    Terms come from `judge`.
    """

    params: ElectraDefinition | CocoLmDefinition

    def build(self) -> None:
        replacements = self.params.replacements
        self.auxiliary = None
        if replacements != "random":
            self.auxiliary = self.make_auxiliary(shared=replacements == "auxiliary")
        if self.auxiliary is not None and replacements == "converged":
            self.auxiliary.requires_grad_(False)
        self.weights = {"auxiliary_mlm": 1.0} if replacements == "auxiliary" else {}
        # Equation for p_copy: w . h without a bias, on the states themselves.
        self.detector = self.draw_linear(nn.Linear(self.encoder.hidden_size, 1, bias=False), "detector")

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        if "auxiliary" in parts and self.auxiliary is not None:
            self.auxiliary.load_parts({n: t for n, t in tensors.items() if n.startswith("auxiliary/")})

    def parts(self) -> dict[str, Tensor]:
        return {}  # the auxiliary network is discarded after training (section 3.1)

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> ReplacedViews:
        return self.replaced_views(examples.tokens, draw, self.params.crop_ratio)

    def replaced_views(self, tokens: Tokens, draw: Draw, crop_ratio: float) -> ReplacedViews:
        """The masked view, and the cropped one where the ratio is above 0."""
        where, ids = self.mask(tokens, draw)
        uniforms = replacements = None
        if self.auxiliary is None:
            replacements = draw("random_replacement").integers(0, self.vocabulary.size, len(where))
        else:
            uniforms = draw("replacement").random(len(where))
        main = tokens
        if crop_ratio:
            kept, lengths = crop(tokens.lengths, crop_ratio, draw("crop").random(len(tokens)))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            shorter = Tokens(tokens.ids[kept], tokens.types[kept], tokens.special[kept], offsets)
            main = joined(tokens, shorter)
        flops = self.step_flops(tokens, predicted=len(where), encoded=main)
        targets = tokens.ids[where].astype(np.int64)
        return ReplacedViews(
            tokens, np.arange(len(tokens)), ids, None, flops, where, targets, main, uniforms, replacements
        )

    def forward(  # type: ignore[override]  # the views are its own `prepare`'s
        self, batch: Batch, views: ReplacedViews, measures: Measures | None = None
    ) -> dict[str, Tensor]:
        device = batch.ids.device
        where, targets = on(device, views.where, views.targets)
        terms: dict[str, Tensor] = {}
        logits = None
        if "auxiliary_mlm" in self.weights:
            logits = self.auxiliary_logits(batch, where)
            terms["auxiliary_mlm"] = self.auxiliary_term(logits, targets, measures)
        main, original = self.replace(batch, views, where, logits if self.params.sampling_dropout else None)
        corrupted, size = main.ids[: len(original)], len(original)
        hidden = self.encoder(main)
        masked = torch.zeros_like(original, dtype=torch.bool).index_fill(0, where, True)
        if measures is not None:
            measures["replaced_share"] = (corrupted != original).float().mean()
        first = hidden.index_select(0, main.packing.first)
        rows = len(batch.packing.lengths)
        seen = Corrupted(
            hidden[:size], original, corrupted, masked, where, first[:rows], first[rows:], views.global_batch
        )
        terms |= self.judge(seen, measures)
        return terms

    def counts(self, views: MaskedViews) -> dict[str, float]:
        return {**super().counts(views), "rtd": len(views.tokens.ids)}

    def replace(
        self, batch: Batch, views: ReplacedViews, where: Tensor, logits: Tensor | None = None
    ) -> tuple[Batch, Tensor]:
        """(what the encoder reads: the corrupted view and behind it the cropped one, the original ids of the former [T]).
        `logits`: as in `sample`."""
        if views.replacements is not None:
            (replacements,) = on(where.device, views.replacements)
        else:
            assert views.uniforms is not None
            (uniforms,) = on(where.device, views.uniforms)
            replacements = self.sample(batch, where, uniforms, logits)
        main = Batch.of(views.main, where.device)
        size = len(batch.ids)
        original = main.ids[:size]
        corrupted = original.index_copy(0, where, replacements)
        return Batch(torch.cat([corrupted, main.ids[size:]]), main.types, main.packing), original

    @torch.no_grad()
    def sample(self, batch: Batch, where: Tensor, uniforms: Tensor, logits: Tensor | None = None) -> Tensor:
        """Replacements [M] drawn from the auxiliary network's distribution at the masked positions by inverting its cumulative
        distribution at `uniforms`: a stream of its own decides, not torch's generator. `logits` [M, V]: of the pass that trains the
        network, dropout included (ELECTRA); None for a pass without dropout (COCO-LM 3.3)."""
        assert self.auxiliary is not None
        training = self.auxiliary.training
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

    def judge(self, seen: Corrupted, measures: Measures | None) -> dict[str, Tensor]:
        """The terms on the corrupted view after the encoder."""
        raise NotImplementedError

    def measure_detection(self, logits: Tensor, seen: Corrupted, measures: Measures) -> None:
        """The spread of the first tokens, and the balanced accuracy of telling original from replaced tokens.

        A token counts as said to be replaced when its probability is above the share of replaced ones (so that saying
        'original' throughout gives 0.5); NaN without one.
        """
        measures["embedding_std"] = diagnostics.embedding_std(seen.first)
        same = seen.original == seen.ids
        said = logits.detach().float().sigmoid() >= same.float().mean()
        right = torch.stack([(said & same).sum() / same.sum(), (~said & ~same).sum() / (~same).sum()])
        measures["rtd_balanced_accuracy"] = right.mean()


SAMPLED_AT_ONCE = 512
"""Rows of an [M, V] distribution in double precision that are in memory at once."""


class ReplacedTokenDetection(_Replaced):
    """ELECTRA: the auxiliary network's MLM + lambda_rtd x binary loss over real tokens."""

    params: ElectraDefinition

    def build(self) -> None:
        super().build()
        self.weights["rtd"] = self.params.lambda_rtd

    def judge(self, seen: Corrupted, measures: Measures | None) -> dict[str, Tensor]:
        logits = self.detector(seen.states)[:, 0]
        if measures is not None:
            self.measure_detection(logits, seen, measures)
        real = torch.ones_like(seen.masked)[None]
        return {"rtd": replaced_token_detection(logits[None], seen.original[None], seen.ids[None], real)}


class CorrectiveContrast(_Replaced):
    """COCO-LM (equation 4): the auxiliary network's MLM + corrective LM + sequence contrast."""

    params: CocoLmDefinition

    def build(self) -> None:
        super().build()
        if self.params.rtd:
            self.weights["rtd"] = self.params.lambda_copy
        if self.params.lm != "none":
            self.weights["lm"] = 1.0
        if self.params.contrast:
            self.weights["contrast"] = 1.0
        if self.params.projection:
            size = self.encoder.hidden_size
            self.projection = nn.Sequential(
                self.draw_linear(nn.Linear(size, size), "projection"),
                nn.GELU(),
                nn.LayerNorm(size, eps=self.encoder.norm_eps),
            )

    def judge(self, seen: Corrupted, measures: Measures | None) -> dict[str, Tensor]:
        logits = self.detector(seen.states)[:, 0]
        if measures is not None:
            self.measure_detection(logits, seen, measures)
        terms = self.correct(logits, seen, measures)
        if self.params.contrast:
            terms["contrast"] = self.contrast(seen, measures)
        return terms

    def correct(self, logits: Tensor, seen: Corrupted, measures: Measures | None) -> dict[str, Tensor]:
        """The binary loss on `logits` [T], and the LM loss in the form that `lm` names."""
        original, corrupted = seen.original, seen.ids
        lm, real, terms = self.params.lm, torch.ones_like(seen.masked), {}
        if self.params.rtd:
            terms["rtd"] = replaced_token_detection(logits[None], original[None], corrupted[None], real[None])
        if lm == "none":
            return terms
        predicted, where = seen.masked, seen.where  # from the host: to look for them would wait for the device
        if lm == "all_token":
            predicted, where = real, torch.arange(len(real), device=real.device)
        words = self.encoder.embedding_logits(seen.states.index_select(0, where))
        targets = original.index_select(0, where)
        if measures is not None:
            replaced = corrupted.index_select(0, where) != targets
            right = (words.detach().argmax(dim=1) == targets) & replaced
            measures["corrected_share"] = right.sum() / replaced.sum()
            # What one answer throughout would correct: the share of the most frequent original among the replaced.
            counts = torch.bincount(targets[replaced], minlength=1)
            measures["corrected_by_frequency"] = counts.max() / replaced.sum()
        if lm == "softmax":
            terms["lm"] = masked_lm(words, targets)
        else:
            terms["lm"] = corrective_lm(
                logits[None],
                words,
                original[None],
                corrupted[None],
                predicted[None],
                stop_gradient=bool(self.params.stop_gradient),
                mixture="weighted_ce" if lm == "weighted_ce" else "probability",
            )
        return terms

    def counts(self, views: MaskedViews) -> dict[str, float]:
        words = len(views.tokens.ids) if self.params.lm == "all_token" else len(views.where)
        return {**super().counts(views), "lm": words, "contrast": len(views.tokens)}

    def contrast(self, seen: Corrupted, measures: Measures | None) -> Tensor:
        corrupted, cropped = seen.first, seen.first_cropped
        if self.params.projection:
            corrupted, cropped = self.projection(corrupted), self.projection(cropped)
        if seen.global_batch:
            corrupted, cropped = seen.global_batch.gather(torch.stack([corrupted, cropped], dim=1)).unbind(dim=1)
        if measures is not None:
            measures |= named(diagnostics.pair_cosines(corrupted, cropped))
        parts = [
            sequence_contrastive(corrupted[rows], cropped[rows], temperature=self.params.temperature) * share
            for rows, share in in_groups(len(corrupted), self.params.contrast_group)
        ]
        return torch.stack(parts).sum()
