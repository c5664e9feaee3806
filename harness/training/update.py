"""One update: forward and backward pass, clipping, AdamW. On a GPU its kernels are recorded once for each shape of a batch and repeated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from harness.encoders.models.batch import Batch
from harness.errors import first_line
from harness.objectives.base import TrainingObjective, at_least_single
from harness.specs import Optim
from harness.streams import seed_of
from harness.training.forward_backward import ForwardBackward, Placement, autocast, seed_dropout

MOST_TOKENS = 16_384
"""Of a captured update, padding included. A larger one keeps the device busy by itself."""
MOST_KEPT = 4
"""Kinds of stages whose captured updates a process keeps."""


class CudaGraphs:
    """CUDA graphs with a memory pool of their own. A stream of their own too: those of one stream share the workspace of cuBLAS. A recorder
    has these two methods."""

    def __init__(self) -> None:
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """(its result, which is not computed yet, and what computes it, each time from what is in the same tensors then)."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = function()
        return result, graph.replay

    @contextmanager
    def active(self) -> Iterator[None]:
        """In which a stage runs whose updates are recorded."""
        around = torch.cuda.current_stream()
        self._stream.wait_stream(around)
        with torch.cuda.stream(self._stream):
            yield
        around.wait_stream(self._stream)


@dataclass(eq=False)
class Update(ForwardBackward):
    """Updates of one stage, one after another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        optim, device = self.optim, self.placement.device
        self.trained = trainable(self.objective)
        # A captured update reads the rate from the device. A number is exact in double precision, which a CPU keeps.
        self._rate = torch.tensor(optim.lr, device=device) if self.block else None
        rate, betas = optim.lr if self._rate is None else self._rate, (optim.beta1, optim.beta2)
        groups, on_gpu = decay_groups(self.trained, optim), device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=betas, eps=optim.eps, fused=True, capturable=on_gpu)

    def __call__(self, batch: Batch, step: int, rate: float) -> dict[str, Tensor]:
        """Returns this rank's summands of the loss and the terms, without gradient."""
        self._set_rate(rate)
        terms = self.run(batch, step)
        self._apply()
        return terms

    def active(self) -> AbstractContextManager[None]:
        """The context of all updates of a stage."""
        return nullcontext()

    def _set_rate(self, rate: float) -> None:
        if self._rate is not None:
            self._rate.fill_(rate)
        for group in self.optimizer.param_groups:  # a checkpoint brings tensors of its own
            group["lr"] = rate if self._rate is None else self._rate

    def _apply(self) -> None:
        self.scaler.unscale_(self.optimizer)
        if self.optim.clip > 0:
            torch.nn.utils.clip_grad_norm_(list(self.trained.values()), self.optim.clip, foreach=True)
        # Skipped where fp16's gradients overflowed, by all ranks alike: they have the same gradient. It is an update all the same: a
        # stage has a fixed number of them, and order and schedule follow from it.
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


Program = Callable[[Batch], dict[str, Tensor]]
"""A captured update: what a batch of its form gives."""


@dataclass
class Kept:
    """What captured updates of one kind of stage share, from one stage to the next: the tensors at whose places they read and write. `programs` by
    the form of a batch, None for what cannot be captured; `seen`: the forms of which there was a batch."""

    recorder: Any
    tensors: dict[str, Tensor]
    rate: Tensor
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    seen: set[Any] = field(default_factory=set)
    programs: dict[Any, Program | None] = field(default_factory=dict)


_KEPT: dict[str, Kept] = {}
"""Of stages that have ended, by what is equal for two that share it; the last one last."""


class CapturedUpdate(Update):
    """The first batch of a form is an update as any other; at the second its kernels are recorded, and repeated from then on. Both give the same
    bits. What cannot be recorded stays as it is, with a line in the log."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self._rate is not None
        self._key = self._identity()
        self._known = _KEPT.pop(self._key, None)  # no two stages have it at once
        if self._known is None and self.placement.device.type == "cuda":
            free, memory = torch.cuda.mem_get_info(self.placement.device)
            if free < memory / 2:  # graphs of other kinds must not take what this one needs
                _KEPT.clear()
        tensors = {name: tensor.detach() for name, tensor in self._tensors().items()}
        self._kept = self._known or Kept((self.placement.recorder or CudaGraphs)(), tensors, self._rate)

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._kept.recorder.active():
            yield
            for tensor in self._tensors().values():  # the stage leaves with weights that no later one writes into
                tensor.data = tensor.data.clone()
        _KEPT.pop(self._key, None)
        _KEPT[self._key] = self._kept
        if len(_KEPT) > MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]

    def __call__(self, batch: Batch, step: int, rate: float) -> dict[str, Tensor]:
        batch, kept = batch.laid_out(block=True), self._kept
        if batch.mask is None or len(batch.ids) > MOST_TOKENS:
            return super().__call__(batch, step, rate)
        if self._known:
            self._move_to(self._known)
        self._set_rate(rate)  # before anything is captured, which reads it from there
        form = batch.form
        if form in kept.seen and form not in kept.programs:
            kept.programs[form] = self._captured(batch)
        program = kept.programs.get(form)
        kept.seen.add(form)
        if program is None:
            terms = super().__call__(batch, step, rate)
            kept.state = kept.state or {name: self.optimizer.state[each] for name, each in self.trained.items()}
            return terms
        seed_dropout(seed_of(self.seed, "dropout", step), self.placement.device)
        return program(batch)

    def _captured(self, host: Batch) -> Program | None:
        names: list[str] = []
        batch = host.on(self.placement.device)

        def update() -> Tensor:
            with autocast(self.placement.device, self.optim.precision):
                terms = self.objective(batch)
            loss = self.objective.loss(terms)
            loss.backward()  # type: ignore[no-untyped-call]
            self._apply()
            names[:] = ["loss", *terms]
            return torch.stack([at_least_single(each.detach()) for each in (loss, *terms.values())])

        try:
            losses, replay = self._kept.recorder.record(update)
        except RuntimeError as error:  # no memory for it, or a kernel that needs the host
            self.optimizer.zero_grad(set_to_none=True)
            logging.getLogger(__name__).warning(
                "an update of %d x %d tokens is not captured: %s", *batch.shape, first_line(error)
            )
            return None

        def repeated(host: Batch) -> dict[str, Tensor]:
            batch.fill(host)
            replay()
            return dict(zip(names, losses.clone().unbind(), strict=True))

        return repeated

    def _move_to(self, known: Kept) -> None:
        """Bring weights and the state of AdamW to the places that captured updates read."""
        for name, tensor in self._tensors().items():
            known.tensors[name].copy_(tensor)
            tensor.data = known.tensors[name]
        for name, state in known.state.items():
            own = self.optimizer.state[self.trained[name]]
            for part, tensor in state.items():
                tensor.copy_(own[part]) if part in own else tensor.zero_()
            self.optimizer.state[self.trained[name]] = state
        self._rate, self._known = known.rate, None

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.objective.named_parameters()), **dict(self.objective.named_buffers())}

    def _identity(self) -> str:
        """What is equal for two stages that the same captured updates serve."""
        objective = self.objective
        recipe = replace(self.optim, lr=0.0, steps=0, batch_size=0, warmup=0.0, schedule="linear")
        forms = [(name, tensor.shape, tensor.dtype) for name, tensor in self._tensors().items()]
        kind = (objective.params.objective(), objective.kind, objective.vocabulary, objective.encoder.shape)
        return repr((recipe, kind, list(self.trained), forms, self.placement.device))


def capturable(objective: TrainingObjective, optim: Optim, placement: Placement) -> bool:
    """Whether the updates of a stage are captured: on a GPU, by one process, whole and unscaled."""
    alone = placement.process_group.size == 1 and not placement.micro_batch and optim.precision != "fp16"
    return placement.repeats and alone and repeatable(objective)


def repeatable(objective: TrainingObjective) -> bool:
    """Whether each update of an objective runs the same operators: not where states are kept, answers are looked for, or the encoder computes what
    depends on places or windows of tokens."""
    encoder, definition, kind = objective.encoder, objective.params, objective.kind
    plain = encoder.family.packed and not encoder.family.own_positions and encoder.relative_positions is None
    return plain and definition.captured and not definition.encodes_once and not (kind and kind.per_token)


def trainable(objective: TrainingObjective) -> dict[str, torch.nn.Parameter]:
    """Parameters by name: the encoder's, the objective's own, and the encoder's MLM head only where it is used."""
    head = () if objective.uses_mlm_head else {f"encoder.model.{name}" for name in objective.encoder.head_names}
    return {n: p for n, p in objective.named_parameters() if p.requires_grad and n not in head}


def decay_groups(parameters: dict[str, torch.nn.Parameter], optim: Optim) -> list[dict[str, Any]]:
    """Parameter groups of AdamW: biases and norms are not decayed, as in Hugging Face's run_glue. One group where all parameters are, as
    in fairseq, or none."""
    every = list(parameters.values())
    if not optim.weight_decay or optim.decay_biases_and_norms:
        return [{"params": every, "weight_decay": optim.weight_decay}]
    decayed, free = ([p for p in every if (p.dim() < 2) == vectors] for vectors in (False, True))
    return [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": free, "weight_decay": 0.0}]
