"""The model that runs an encoder: packed input in, one hidden state a token out, its MLM head on asked positions.

Shapes: B sequences, T tokens in all, M masked positions, d hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM
from transformers.utils import logging as transformers_logging

from harness.encoders import packing as packed
from harness.encoders.tokens import Tokens
from harness.errors import UserError
from harness.streams import seed_of

_HEAD_PREFIXES = {
    "bert": ("cls.",),
    "roberta": ("lm_head.",),
    "camembert": ("lm_head.",),
    "xlm-roberta": ("lm_head.",),
    "mpnet": ("lm_head.",),
    "electra": ("generator_predictions.", "generator_lm_head."),
}
_PADDED_ONLY = ("mpnet",)
"""Model types whose attention cannot be registered: they run on the padded view."""


@dataclass(frozen=True)
class Batch:
    """Packed sequences on a device: `ids`, `types` [T] and where they lie."""

    ids: Tensor
    types: Tensor
    packing: packed.Packing

    @classmethod
    def of(cls, tokens: Tokens, device: torch.device, ids: Any = None) -> Batch:
        """From tokens, with `ids` [T] in place of theirs when given (a corrupted view)."""
        chosen = tokens.ids if ids is None else ids
        return cls(
            torch.from_numpy(np.asarray(chosen, dtype=np.int64)).to(device),
            torch.from_numpy(tokens.types.astype(np.int64)).to(device),
            packed.packing(tokens.lengths, device),
        )


class TextEncoder(nn.Module):
    """An encoder with its MLM head. `model` is the library's own masked-language model."""

    def __init__(self, model: Any, *, fresh_head: bool) -> None:
        super().__init__()
        self.model: Any = model
        self.fresh_head = fresh_head
        self.config: Any = model.config
        self.kind: str = self.config.model_type
        self.hidden_size: int = self.config.hidden_size

    @property
    def base(self) -> nn.Module:
        base: nn.Module = getattr(self.model, self.model.base_model_prefix)
        return base

    def forward(self, batch: Batch) -> Tensor:
        """Last hidden states [T, d]."""
        lying = batch.packing
        # Given, not left to the library: it would count from the ids, where a random replacement may be a padding id.
        positions = lying.positions + (0 if self.kind in ("bert", "electra") else self.config.pad_token_id + 1)
        if self.kind in _PADDED_ONLY:
            rows, width = lying.shape
            padding = batch.ids.new_full((rows * width,), self.config.pad_token_id)
            hidden = self.base(
                input_ids=padding.index_copy(0, lying.slots, batch.ids).view(rows, width),
                attention_mask=torch.zeros_like(padding).index_fill(0, lying.slots, 1).view(rows, width),
                position_ids=padding.index_copy(0, lying.slots, positions).view(rows, width),
            )[0]
            return hidden.reshape(rows * width, -1).index_select(0, lying.slots)  # type: ignore[no-any-return]
        types = batch.types if self.config.type_vocab_size > 1 else torch.zeros_like(batch.types)
        hidden = self.base(
            input_ids=batch.ids[None], token_type_ids=types[None], position_ids=positions[None], packing=lying
        )[0]
        return hidden[0]  # type: ignore[no-any-return]

    def mlm_logits(self, hidden: Tensor) -> Tensor:
        """[M, d] -> [M, V]: the encoder's own head, at the asked positions only."""
        model = self.model
        if self.kind == "bert":
            return model.cls(hidden)  # type: ignore[no-any-return]
        if self.kind == "electra":
            return model.generator_lm_head(model.generator_predictions(hidden))  # type: ignore[no-any-return]
        return model.lm_head(hidden)  # type: ignore[no-any-return]

    def set_dropout(self, probability: float) -> None:
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability

    # ------------------------------------------------------------ weights

    def _split(self) -> dict[str, dict[str, Tensor]]:
        """Parts by name, tied tensors once (in 'encoder')."""
        heads = _HEAD_PREFIXES[self.kind]
        parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "mlm_head": {}}
        seen = {p.data_ptr() for n, p in self.model.state_dict().items() if not n.startswith(heads)}
        for name, tensor in self.model.state_dict().items():
            if not name.startswith(heads):
                parts["encoder"][name] = tensor
            elif tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                parts["mlm_head"][name] = tensor
        return parts

    def parts(self) -> dict[str, Tensor]:
        """All weights as 'part/name', on the CPU: what a product holds."""
        return {
            f"{part}/{name}": tensor.detach().to("cpu", copy=True).contiguous()
            for part, tensors in self._split().items()
            for name, tensor in tensors.items()
        }

    def load_parts(self, tensors: dict[str, Tensor], parts: Iterable[str]) -> None:
        """Take the named parts of a product."""
        wanted = tuple(parts)
        state = {n.split("/", 1)[1]: t for n, t in tensors.items() if n.split("/", 1)[0] in wanted}
        own = self._split()
        missing = [n for part in wanted for n in own[part] if n not in state]
        if missing:
            raise ValueError(f"the parent's product lacks {missing[0]} ({len(missing)} tensors)")
        self.model.load_state_dict(state, strict=False)
        if "mlm_head" in wanted:
            self.fresh_head = False


@lru_cache(maxsize=2)
def _template(folder: str, digest: str) -> TextEncoder:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # The seed is fixed so that nothing unnamed can vary; a fresh head is drawn again from the stage's own stream.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model, info = AutoModelForMaskedLM.from_pretrained(
                folder,
                attn_implementation=packed.NAME if not _padded_only(folder) else "eager",
                dtype=torch.float32,
                trust_remote_code=False,
                weights_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(f"The encoder in {folder} cannot be loaded: {first}") from None
    heads = _HEAD_PREFIXES[model.config.model_type]
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(heads))
    if missing:
        raise UserError(f"The encoder in {folder} lacks the weights {missing[0]} (and {len(missing) - 1} more).")
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "lm_head.decoder.weight"}
    tied |= {"lm_head.decoder.bias", "generator_lm_head.weight"}
    fresh = any(name.startswith(heads) and name not in tied for name in info["missing_keys"])
    return TextEncoder(model, fresh_head=fresh)


def _padded_only(folder: str) -> bool:
    import json

    return json.loads((Path(folder) / "config.json").read_text())["model_type"] in _PADDED_ONLY


def load_encoder(folder: Path, digest: str, *, seed: int) -> TextEncoder:
    """A fresh copy of the encoder; a head that the checkpoint lacks is drawn from the stream (seed, 'mlm_head')."""
    encoder = copy.deepcopy(_template(str(folder), digest))
    if encoder.fresh_head:
        draw_weights(encoder, _HEAD_PREFIXES[encoder.kind], seed)
    return encoder


def draw_weights(encoder: TextEncoder, prefixes: tuple[str, ...], seed: int) -> None:
    """Draw the head's own matrices anew, normal with the encoder's initialiser range; biases 0, norms 1."""
    generator = torch.Generator().manual_seed(seed_of(seed, "mlm_head"))
    own = encoder._split()["mlm_head"]
    with torch.no_grad():
        for name in sorted(own):
            if own[name].dim() > 1:
                own[name].normal_(0.0, encoder.config.initializer_range, generator=generator)
            else:
                own[name].fill_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)


# ---------------------------------------------------------------- products


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """Content of named tensors, whatever file they lie in."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        whole.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        whole.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return whole.hexdigest()[:32]


def save_product(tensors: dict[str, Tensor], path: Path) -> str:
    """Write weights under a temporary name, then move them into place; returns their digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = weights_digest(tensors)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, str(temporary), metadata={"digest": digest})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def load_product(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(str(path))
    return tensors
