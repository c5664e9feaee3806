"""The auxiliary network that replaces masked tokens, COCO-LM's or ELECTRA's generator: a shallow Transformer with an
MLM head of its own. Word, position and type embeddings and their normalisation are the encoder's, so that both losses
train them (COCO-LM section 3, docs/papers.md L6, L9, L12, L13)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from harness.encoders.kernels.cpu import linear, use_cpu_kernels
from harness.encoders.kernels.packing import padded_to_step
from harness.encoders.models.batch import Batch
from harness.encoders.models.relative_positions import RelativePositions
from harness.encoders.models.text_encoder import TextEncoder, draw, only_positions, parts_of
from harness.streams import seed_of


class Auxiliary(nn.Module):
    """`layers` layers of the encoder's kind over its embeddings, `hidden` wide (0: as wide as the encoder).

    `initial`: 'encoder' copies the encoder's first layers and its MLM head, 'random' draws all from the stream (seed,
    'auxiliary'). `shared`: the embeddings are the encoder's own; else a copy as they are now. A narrower network keeps
    the encoder's head size, has 4 x hidden in its feed-forward layers, and reaches its width and comes back from it by
    a projection. Relative positions are a table of its own, zero where layers are drawn. The encoder is no submodule:
    an objective that holds both lists every parameter once."""

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        layers: int,
        hidden: int,
        initial: Literal["encoder", "random"],
        shared: bool,
        seed: int,
    ) -> None:
        super().__init__()
        of = encoder.config
        width = hidden or encoder.hidden_size
        self._encoder = (encoder,)  # in a tuple, where nn.Module does not look for submodules
        own = copy.deepcopy(of)
        own.num_hidden_layers = layers
        if width != encoder.hidden_size:
            own.hidden_size = width
            setattr(own, encoder.family.names.get("intermediate_size", "intermediate_size"), 4 * width)
            own.num_attention_heads = of.num_attention_heads * width // encoder.hidden_size
        base = encoder.base
        words = base.embeddings.word_embeddings.weight.shape[1]
        with torch.random.fork_rng(devices=[]):  # what the constructors draw is drawn over below
            self.project = nn.Linear(words, width) if width != words else None
            self.transformer = type(encoder.stack)(own)
            self.dense = nn.Linear(width, words)
        dense, norm, bias, activation = _head(encoder)
        self.norm = nn.LayerNorm(words, eps=norm.eps)
        self.bias = nn.Parameter(torch.zeros(of.vocab_size))
        self.activation = copy.deepcopy(activation)  # a module in some kinds: the encoder's own would follow our mode
        if initial == "encoder":
            self.transformer.layer.load_state_dict(encoder.stack.layer[:layers].state_dict())
            self.dense.load_state_dict(dense.state_dict())
            self.norm.load_state_dict(norm.state_dict())
            self.bias.data.copy_(bias.data)
            if self.project is not None:
                self.project.load_state_dict(base.embeddings_project.state_dict())
        else:
            draw(dict(self.named_parameters()), of.initializer_range, seed_of(seed, "auxiliary"))
        self.relative_positions = None
        if (theirs := encoder.relative_positions) is not None:
            self.relative_positions = RelativePositions(own.num_attention_heads, *theirs.shape)
            if initial == "encoder":
                self.relative_positions.load_state_dict(theirs.state_dict())
        self.embeddings = None if shared else copy.deepcopy(base.embeddings)
        self.dropout = nn.Dropout(base.embeddings.dropout.p)
        self.config = encoder.family.shape(own.to_dict()) | {"head_width": words}
        use_cpu_kernels(self)
        self.to(next(encoder.parameters()).device)

    def forward(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """Last hidden states [T, h], or those at `positions` [M] only [M, h]; in `eval()` without any dropout, whatever
        mode the encoder is in (L6)."""
        table = self._embeddings
        position_ids, types = (padded_to_step(each) for each in self._encoder[0].position_and_type_ids(batch))
        # Not by calling the embeddings' module: its dropout follows the mode of the encoder.
        embedded = table.word_embeddings(padded_to_step(batch.ids))
        if hasattr(table, "token_type_embeddings"):
            embedded = embedded + table.token_type_embeddings(types)
        embedded = self.dropout(table.LayerNorm(embedded + table.position_embeddings(position_ids)))
        if self.project is not None:
            embedded = self.project(embedded)
        if self.relative_positions is not None:
            batch = self.relative_positions(batch)
        count, last = len(batch.ids if positions is None else positions), self.transformer.layer[-1]
        with only_positions(self._encoder[0].family, last, positions, batch):
            return self.transformer(embedded[None], batch=batch)[0][0, :count]  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, h] -> [M, V]: the auxiliary's own MLM head."""
        transformed = self.norm(self.activation(self.dense(hidden)))
        return linear(transformed, self._embeddings.word_embeddings.weight, self.bias)

    @property
    def _embeddings(self) -> Any:
        return self._encoder[0].base.embeddings if self.embeddings is None else self.embeddings

    def parts(self) -> dict[str, Tensor]:
        """Own weights, as `parts_of` names them."""
        return parts_of("auxiliary", self.state_dict())

    def load_parts(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the auxiliary of loaded weights."""
        self.load_state_dict(
            {n.removeprefix("auxiliary/"): t for n, t in tensors.items() if n.startswith("auxiliary/")}
        )


def _head(encoder: TextEncoder) -> tuple[nn.Module, Any, Tensor, Any]:
    """(dense, normalisation, output bias [V], activation) of the encoder's MLM head."""
    assert encoder.family.transform is not None
    *found, activation = encoder.family.transform
    dense, norm, bias = (attrgetter(path)(encoder.model) for path in found)
    return dense, norm, bias, attrgetter(activation)(encoder.model) if activation else nn.functional.gelu
