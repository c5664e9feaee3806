"""How much faster is ModernBERT packed than by the library's padded forward, on short texts? The same weights, by turns.

    python benchmarks/packed.py [--hidden 384] [--layers 10] [--batch 16] [--rounds 15] [--threads 1]

Random weights in the shape of Ettin-32m by default. The batches hold texts of 5 to 40 tokens, as SST-2 has them; padded means padded to the
longest of the batch, with `sdpa` attention. Both compute the same hidden states, which is checked. Prints the median seconds of a forward pass
and of a forward and backward pass, and their ratios.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor
from transformers import AutoModelForMaskedLM, ModernBertConfig

from harness.encoders.kernels.attention import NAME
from harness.encoders.models.text_encoder import Batch, TextEncoder
from harness.encoders.tokens import Tokens

SHORTEST, LONGEST, VOCABULARY = 5, 40, 50368
SAME = 1e-4
"""How far the hidden states of the two may be apart."""


def models(hidden: int, layers: int) -> tuple[TextEncoder, Any]:
    """ModernBERT packed, and the library's own base model with the same weights."""
    config = ModernBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 3 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        embedding_dropout=0.0,
        mlp_dropout=0.0,
        attention_dropout=0.0,
    )
    torch.manual_seed(0)
    plain = AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    own = copy.deepcopy(config)  # a model keeps its attention in its configuration
    ours = AutoModelForMaskedLM.from_config(own, attn_implementation=NAME, dtype=torch.float32)
    ours.load_state_dict(plain.state_dict())
    return TextEncoder(ours, fresh_head=False), plain.base_model


def batches(count: int, size: int) -> list[tuple[Batch, dict[str, Tensor], Tensor]]:
    """Each packed, padded, and which places of the padded one hold its tokens."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        lengths = rng.integers(SHORTEST, LONGEST + 1, size)
        ids = rng.integers(1000, VOCABULARY, lengths.sum()).astype(np.int32)
        offsets = np.r_[0, np.cumsum(lengths)]
        zeros = np.zeros(len(ids), dtype=np.int8)
        tokens = Tokens(ids, zeros, zeros.astype(bool), offsets)
        mask = torch.arange(int(lengths.max()))[None] < torch.from_numpy(lengths)[:, None]
        padded = torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, torch.from_numpy(ids).long())
        found.append(
            (Batch.of(tokens, torch.device("cpu")), {"input_ids": padded, "attention_mask": mask.long()}, mask)
        )
    return found


def seconds(run: Callable[[], Tensor], train: bool) -> float:
    start = time.perf_counter()
    with torch.set_grad_enabled(train):
        hidden = run()
        if train:
            hidden.square().mean().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 384), ("layers", 10), ("batch", 16), ("rounds", 15), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours, plain = models(args.hidden, args.layers)
    given = batches(args.rounds + 2, args.batch)
    with torch.no_grad():
        apart = max(float((ours(ids) - plain(**padded)[0][mask]).abs().max()) for ids, padded, mask in given[:2])
    if apart > SAME:
        raise SystemExit(f"The hidden states of packed and padded are {apart:.2g} apart.")
    held = sum(int(mask.sum()) for *_, mask in given) / sum(mask.numel() for *_, mask in given)
    rows = []
    for what, train in (("forward", False), ("forward and backward", True)):
        packed, padded = [], []
        for number, (ids, laid_out, _) in enumerate(given):  # by turns; the first two rounds warm up
            first, second = (seconds(run, train) for run in (lambda b=ids: ours(b), lambda b=laid_out: plain(**b)[0]))
            if number > 1:
                packed.append(first)
                padded.append(second)
        ratio = statistics.median(b / a for a, b in zip(packed, padded, strict=True))
        rows.append((what, statistics.median(packed), statistics.median(padded), f"{ratio:.2f} x"))
    print(
        f"ModernBERT, {args.layers} layers of {args.hidden}, batches of {args.batch} texts of {SHORTEST} to {LONGEST} tokens; "
        f"{100 * held:.0f} % of the padded places hold a token; hidden states {apart:.1g} apart; {args.threads} thread(s)."
    )
    print(tabulate(rows, headers=("", "packed, s", "padded, s", "padded / packed"), floatfmt=".4f"))


if __name__ == "__main__":
    main()
