"""Encoders that do not exist yet: published sizes from which a BERT is made with drawn weights. No torch.

`--encoder new:SIZE` pre-trains one; `sources.locate` gives it a tokenizer, `model.load_encoder` its first weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """A BERT by its numbers, and where they are from.

    `vocabulary` is the published one: an encoder takes that of the tokenizer it is made with. `auxiliary_layers`: depth
    of the network that replaces tokens, 0 where the source has none. `published`: parameters as the source prints them.
    `relative_positions`: buckets and maximal distance of T5's relative positions, (0, 0) where the source has none.
    """

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    auxiliary_layers: int
    note: str
    published: int | None = None
    relative_positions: tuple[int, int] = (0, 0)

    def config(self, vocabulary: int, pad_id: int = 0) -> dict[str, Any]:
        """The configuration in full, so that a new default of a library cannot change the meaning of a digest.

        `auxiliary_layers` is in it where the source's network is not a third as deep as the encoder.
        """
        third = -(-self.layers // 3)
        auxiliary = {"auxiliary_layers": self.auxiliary_layers} if self.auxiliary_layers not in (0, third) else {}
        return {
            **auxiliary,
            "model_type": "bert",
            "vocab_size": vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": self.positions,
            "type_vocab_size": 2,
            "pad_token_id": pad_id,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "tie_word_embeddings": True,
            "is_decoder": False,
            "add_cross_attention": False,
        }


SIZES = {
    "tiny": Size(2, 64, 2, 256, 30_522, 128, 1, "for tests and the demo; of no paper"),
    "bert-small": Size(4, 512, 8, 2048, 30_522, 512, 0, "TACO's small encoder (Table 5)"),
    "bert-base": Size(12, 768, 12, 3072, 30_522, 512, 0, "Devlin et al. 2019, BERT-base uncased", 110_000_000),
    "coco-lm-base": Size(12, 768, 12, 3072, 32_768, 512, 4, "COCO-LM's base (section 4)", 110_000_000, (32, 128)),
    "coco-lm-base++": Size(
        12, 768, 12, 3072, 64_000, 512, 4, "COCO-LM's base++ (section 4), cased", 134_000_000, (64, 128)
    ),
    "coco-lm-large++": Size(
        24, 1024, 16, 4096, 64_000, 512, 6, "COCO-LM's large++ (section 4), cased", 367_000_000, (128, 256)
    ),
}


def relative_positions_error(buckets: int, distance: int) -> str | None:
    """Why T5's relative positions cannot have these numbers, in words that follow their names, or None."""
    if buckets < 4 or buckets % 2:
        return f"relative_buckets {buckets} cannot be divided into two directions; set an even number of 4 or more"
    if distance <= buckets // 4:
        return (
            f"relative_distance {distance} lies within the {buckets // 4} distances that have a bucket each; set "
            f"{buckets // 4 + 1} or more"
        )
    return None
