"""The encoder model: packed batches in, one hidden state per token out, and its MLM head on chosen positions.

Shapes: B sequences, T tokens in all, M masked positions, d hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

from harness.encoders.families import Family, Layer, base_config, family_of
from harness.encoders.kernels.attention import NAME
from harness.encoders.kernels.cpu import linear, use_cpu_kernels
from harness.encoders.kernels.packing import padded_to_step
from harness.encoders.models.batch import Batch
from harness.encoders.models.relative_positions import RelativePositions
from harness.errors import UserError, first_line
from harness.streams import seed_of

ENCODER_PARTS = ("encoder", "mlm_head")
"""Parts of a TextEncoder's saved weights; an objective may add parts of its own."""


class TextEncoder(nn.Module):
    """An encoder with its MLM head. `model` is the library's own masked-language model."""

    def __init__(self, model: Any, *, fresh_head: bool) -> None:
        """`inputs`: what the base model's forward takes. Raises UserError for a model that takes no attention mask, whose states
        would depend on padding."""
        super().__init__()
        self.family = family_of({"model_type": model.config.model_type})
        for module in list(model.modules()):
            for name in self.family.dropouts:
                if isinstance(getattr(module, name, None), nn.Identity):
                    setattr(module, name, nn.Dropout(0.0))
        use_cpu_kernels(model)
        self.model: Any = model
        self._fused = False
        self.fresh_head = fresh_head
        self.config: Any = model.config
        self.hidden_size: int = self.config.hidden_size
        self.inputs = frozenset(signature(self.base.forward).parameters)
        if "attention_mask" not in self.inputs:
            raise UserError(f"A {self.family.title} encoder takes no attention mask; take one of another model type.")

    @property
    def base(self) -> Any:
        """The library's model without the MLM head."""
        return self.model.base_model

    @cached_property
    def shape(self) -> dict[str, Any]:
        return self.family.shape(self.config.to_dict())

    @property
    def head_names(self) -> set[str]:
        """The names in `model` of what belongs to the MLM head: all that is not the base model's."""
        return _outside_base(self.model, self.model.state_dict())

    def forward(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """Last hidden states [T, d], or those of the tokens at `positions` [M] only, in that order [M, d]."""
        if positions is None:
            return self._states(batch)[0][: len(batch.ids)]
        if not self.family.packed:
            return self._states(batch)[0].index_select(0, positions)
        with only_positions(self.family, self.base.get_submodule(self.family.layers)[-1], positions, batch):
            return self._states(batch)[0][: len(positions)]

    def forward_with_embeddings(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(last hidden states [T, d], the very tensor [T, d] that the embedding layer returns, after its normalisation
        and dropout: docs/papers.md T3)."""
        hidden, embedded = self._states(batch, output_hidden_states=True)
        return hidden[: len(batch.ids)], embedded[: len(batch.ids)]

    @property
    def stack(self) -> Any:
        """The module that runs the layers of a packed family."""
        return self.base.get_submodule(self.family.stack)

    def _states(self, batch: Batch, **more: Any) -> tuple[Tensor, ...]:
        """(last hidden states [T, d], perhaps with further rows behind,), and with `output_hidden_states` also those that enter the first layer."""
        positions, types = self.position_and_type_ids(batch)
        if self.family.packed:
            if self.relative_positions is not None:
                batch = self.relative_positions(batch)
            more |= {"input_ids": padded_to_step(batch.ids)[None], "position_ids": padded_to_step(positions)[None]}
            more["batch"] = batch
            if "token_type_ids" in self.inputs:
                more["token_type_ids"] = padded_to_step(types)[None]
        else:
            if batch.ids.device.type != "cpu" and not self._fused:
                # Where the library has it for this model. A CPU's numbers stay.
                self.model.set_attn_implementation("sdpa")
                self._fused = True
            padding, pad_id = ~batch.real, self.config.pad_token_id or 0
            more |= {"input_ids": batch.padded(batch.ids).masked_fill(padding, pad_id)}
            more |= {"attention_mask": batch.real.long()}
            if self.family.numbered and "position_ids" in self.inputs:
                more["position_ids"] = batch.padded(positions).masked_fill(padding, pad_id)
            if self.typed:
                more["token_type_ids"] = batch.padded(types)
        out = self.base(**more)
        states = (out[0], out.hidden_states[0]) if "output_hidden_states" in more else (out[0],)
        if self.family.packed:
            return tuple(each[0] for each in states)
        if any(each.shape != (*batch.shape, self.hidden_size) for each in states):
            raise ValueError(f"a {self.family.title} encoder has no state of {self.hidden_size} numbers for each token")
        return tuple(batch.gathered(each.flatten(0, 1)) for each in states)

    def position_and_type_ids(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(position ids [T], token type ids [T]) in this model type's own numbering."""
        # Passed explicitly: the library would derive them from the ids, where a random replacement may be the padding id.
        offset = self.config.pad_token_id + 1 if self.family.after_padding else 0
        return batch["positions"] + offset, batch["types"] if self.typed else torch.zeros_like(batch["types"])

    @property
    def typed(self) -> bool:
        """Whether it tells token types apart."""
        return "token_type_ids" in self.inputs and int(getattr(self.config, "type_vocab_size", 1)) > 1

    def embedding_logits(self, hidden: Tensor) -> Tensor:
        """[M, d] -> [M, V]: the product with every word embedding, no bias, no projection (COCO-LM's head for CLM).
        Raises ValueError where the word embeddings are not as wide as d."""
        return linear(hidden, self._words().weight)

    def _words(self) -> Any:
        width = getattr(self.config, "embedding_size", self.hidden_size)
        if width != self.hidden_size:
            raise ValueError(
                f"the word embeddings of this {self.family.title} encoder are {width} wide and its hidden states "
                f"{self.hidden_size}: take an encoder where they are equal"
            )
        return self.base.get_input_embeddings()

    @property
    def relative_positions(self) -> RelativePositions | None:
        return getattr(self.base, "relative_positions", None)

    def add_relative_positions(self, buckets: int = 32, max_distance: int = 128) -> None:
        """Add T5's relative positions to the encoder's own, zero at first. Those that are there stay (`sources.adapted` refuses another shape)."""
        if self.relative_positions is None:
            self._take(RelativePositions(self.config.num_attention_heads, buckets, max_distance))

    def _take(self, relative: RelativePositions) -> None:
        # A submodule of the library's own encoder, so it is trained, saved and loaded with it.
        self.base.add_module("relative_positions", relative.to(next(self.model.parameters()).device))

    def mlm_logits(self, hidden: Tensor) -> Tensor:
        """[M, d] -> [M, V]: the encoder's own MLM head."""
        # The library's whole model, with these states in the place of those that its base model would make.
        self.base.forward = lambda *_, **__: BaseModelOutput(last_hidden_state=hidden[None])
        try:
            return self.model(input_ids=torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device))[0][0]  # type: ignore[no-any-return]
        finally:
            del self.base.forward

    # ------------------------------------------------------------ weights

    def _split(self) -> dict[str, dict[str, Tensor]]:
        """Parts by name, tied tensors once (in 'encoder')."""
        state = self.model.state_dict()
        head = _outside_base(self.model, state)
        parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "mlm_head": {}}
        seen = {tensor.data_ptr() for name, tensor in state.items() if name not in head}
        for name, tensor in state.items():
            if name not in head:
                parts["encoder"][name] = tensor
            elif tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                parts["mlm_head"][name] = tensor
        return parts

    def parts(self) -> dict[str, Tensor]:
        """All weights, as `parts_of` names them."""
        encoder, head = self._split().items()
        return parts_of(*encoder) | parts_of(*head)

    def take_relative_positions(self, state: Mapping[str, Tensor]) -> None:
        """Those in tensors of the model by name, where there are some."""
        prefix = f"{self.model.base_model_prefix}.relative_positions."
        if relative := {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}:
            self._take(RelativePositions.like(relative))

    def load_parts(self, tensors: dict[str, Tensor], parts: Iterable[str]) -> None:
        """Take the named parts of loaded weights; relative positions come with the encoder's where it has them. Raises ValueError where some
        are missing."""
        wanted = tuple(parts)
        state = {n.split("/", 1)[1]: t for n, t in tensors.items() if n.split("/", 1)[0] in wanted}
        self.take_relative_positions(state)
        own = self._split()
        missing = [n for part in wanted for n in own[part] if n not in state]
        if missing:
            raise ValueError(f"the parent's weights lack {missing[0]} ({len(missing)} tensors)")
        self.model.load_state_dict(state, strict=False)
        if "mlm_head" in wanted:
            self.fresh_head = False

    def load_word_embeddings(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the word embeddings alone of loaded weights."""
        own = self.base.get_input_embeddings().weight
        name = next(n for n, t in self._split()["encoder"].items() if t.data_ptr() == own.data_ptr())
        with torch.no_grad():
            own.copy_(tensors[f"encoder/{name}"])


def set_dropout(model: nn.Module, probability: float) -> None:
    """Of all layers of an encoder or of an objective."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name, value in list(vars(module).items()):  # some attention keeps a number alone
            if "dropout" in name and isinstance(value, (int, float)) and not isinstance(value, bool):
                setattr(module, name, probability)


def parts_of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as 'name/own', on the CPU: what a weights file holds."""
    return {f"{name}/{own}": tensor.detach().to("cpu", copy=True).contiguous() for own, tensor in tensors.items()}


def _outside_base(model: Any, names: Iterable[str]) -> set[str]:
    """The names of tensors that belong to a head on top of the library's base model."""
    return {name for name in names if not name.startswith(f"{model.base_model_prefix}.")}


@dataclass(frozen=True)
class Loaded:
    """An encoder as its folder holds it. `lacks`: the weights of its MLM head that are not there; `unread`: those that are there and have no
    place in it."""

    encoder: TextEncoder
    lacks: list[str]
    unread: list[str]


def read_encoder(folder: Path) -> Loaded:
    """The encoder in a folder. Raises UserError where it cannot be loaded, lacks weights other than the head's, or holds layers that its config.json
    does not have."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = json.loads((folder / "config.json").read_text())
    relative = config.get("base_model_type") is not None
    family = family_of(base_config(config))

    def load(**settings: Any) -> tuple[Any, dict[str, Any]]:
        # A fixed seed, so nothing outside the named streams varies; a fresh head is drawn again from the stage's own stream.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found: tuple[Any, dict[str, Any]] = AutoModelForMaskedLM.from_pretrained(
                str(folder),
                config=AutoConfig.for_model(**base_config(config)) if relative else None,
                attn_implementation=NAME if family.packed else "eager",
                dtype=torch.float32,
                trust_remote_code=False,
                weights_only=True,
                output_loading_info=True,
                **settings,
            )
        return found

    begins, settings = family.other_head
    try:
        model, info = load()
        if begins and any(name.startswith(begins) for name in info["unexpected_keys"]):
            model, info = load(**settings)
    except Exception as error:  # whatever a damaged file leads the library to
        raise UserError(f"The encoder in {folder} cannot be loaded: {first_line(error)}") from None
    head = _outside_base(model, info["missing_keys"])
    pooler = {name for name in info["missing_keys"] if "pooler." in name}  # of no use here
    if missing := sorted(set(info["missing_keys"]) - head - pooler):
        raise UserError(f"The encoder in {folder} lacks the weights {missing[0]} (and {len(missing) - 1} more).")
    lacks = head - model.all_tied_weights_keys.keys()
    unread = _unread(model, info["unexpected_keys"])
    known = {re.sub(r"\d+", "#", name) for name in model.base_model.state_dict()}
    if layers := [name for name in unread if re.sub(r"\d+", "#", name) in known]:
        raise UserError(
            f"The encoder in {folder} holds weights of layers that its config.json does not have ({layers[0]} and {len(layers) - 1} more); correct "
            "the number of layers there."
        )
    encoder = TextEncoder(model, fresh_head=bool(lacks))
    if relative:
        encoder.take_relative_positions(load_file(folder / "model.safetensors"))
    return Loaded(encoder, sorted(lacks), unread)


def _unread(model: Any, names: Iterable[str]) -> list[str]:
    """Those of the names that belong to the base model, by its own names, but for the pooler and what is computed."""
    base, computed = model.base_model, {name for name, _ in model.base_model.named_buffers()}
    own = [name.removeprefix(f"{model.base_model_prefix}.") for name in sorted(names)]
    parts = dict(base.named_children())
    return [name for name in own if name.partition(".")[0] in parts and "pooler." not in name and name not in computed]


@lru_cache(maxsize=2)
def _template(folder: str, digest: str, drawn: str) -> Loaded:
    """The encoder of a folder, or one of the configuration `drawn`, in JSON."""
    if not drawn:
        return read_encoder(Path(folder))
    fields = json.loads(drawn)
    kind = fields.pop("model_type")
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForMaskedLM.from_config(
            AutoConfig.for_model(kind, **fields), attn_implementation=NAME, dtype=torch.float32
        )
    encoder = TextEncoder(model, fresh_head=True)
    return Loaded(encoder, sorted(encoder.head_names), [])


def load_encoder(folder: Path, digest: str, *, seed: int, config: Mapping[str, Any] | None = None) -> TextEncoder:
    """A fresh copy of the encoder; what the checkpoint lacks of a head is drawn from the stream (seed, 'mlm_head').
    With `config` (of a `Located` that is new) all weights are drawn, the encoder's from the stream (seed,
    'initial_weights'), normal with `initializer_range`, the padding row, biases 0 and norms 1."""
    template = _template(str(folder), digest, json.dumps(config, sort_keys=True) if config else "")
    encoder = copy.deepcopy(template.encoder)
    parts = encoder._split()
    if config:
        draw(parts["encoder"], encoder.config.initializer_range, seed_of(seed, "initial_weights"))
        with torch.no_grad():
            encoder._words().weight[encoder.config.pad_token_id].zero_()
    if lacking := {name: tensor for name, tensor in parts["mlm_head"].items() if name in template.lacks}:
        draw(lacking, encoder.config.initializer_range, seed_of(seed, "mlm_head"))
    return encoder


def draw(tensors: Mapping[str, Tensor], spread: float, seed: int) -> None:
    """Fill named tensors in the order of their names: matrices normal with `spread`, scales of norms 1, the rest 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in sorted(tensors):
            if tensors[name].dim() > 1:
                tensors[name].normal_(0.0, spread, generator=generator)
            else:
                tensors[name].fill_(1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)


@contextmanager
def only_positions(family: Family, last: Any, positions: Tensor | None, batch: Batch) -> Iterator[None]:
    """In this context a library's last layer runs what follows its attention only at `positions` [M] (M rounded as `padded_to_step`
    does), where there are any. Where these are the first tokens, its attention too computes only those."""
    if positions is None:
        yield
        return
    last.forward = _at_rows(family.layer, last, padded_to_step(positions), positions is batch.first)
    try:
        yield
    finally:
        del last.forward  # that of its class again


def _at_rows(parts: Layer | None, layer: Any, rows: Tensor, first: bool) -> Any:
    """The forward pass of a layer that selects rows before the output projection of its attention: [1, T', d] -> [1, M, d]."""
    whole, projection = layer.forward, layer.get_submodule(parts.projection if parts else "attention.output")

    def selected(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(states.index_select(1, rows) for states in inputs)

    def forward(hidden: Tensor, *given: Any, batch: Batch, **named: Any) -> Tensor:
        named["batch"] = batch.only_first() if first else batch
        hook = projection.register_forward_pre_hook(selected)
        try:
            if parts is None:  # BERT's projection has the residual states too
                return whole(hidden, *given, **named)  # type: ignore[no-any-return]
            read = getattr(layer, parts.attention_norm)(hidden) if parts.pre_norm else hidden
            attended = getattr(layer, parts.attention)(read, *given, **named)[0]
        finally:
            hook.remove()
        feed_forward, feed_forward_norm = getattr(layer, parts.feed_forward), getattr(layer, parts.feed_forward_norm)
        hidden = hidden.index_select(1, rows)
        if parts.pre_norm:
            hidden = hidden + attended
            return hidden + feed_forward(feed_forward_norm(hidden))  # type: ignore[no-any-return]
        hidden = getattr(layer, parts.attention_norm)(attended + hidden)
        return feed_forward_norm(feed_forward(hidden) + hidden)  # type: ignore[no-any-return]

    return forward
