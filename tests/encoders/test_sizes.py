"""Sizes against what their papers print, and the first weights of an encoder that is made from one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from harness.encoders import SIZES, flops, locate
from harness.encoders.models import text_encoder as model_module
from harness.encoders.models.text_encoder import TextEncoder, load_encoder
from harness.encoders.models.weights import weights_digest
from harness.methods.coco_lm import AuxiliaryMlm

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "published", "layers"), [("coco-lm-base", 110, 4), ("coco-lm-base++", 134, 4), ("coco-lm-large++", 367, 6)]
)
def test_published_sizes(name: str, published: int, layers: int) -> None:
    """COCO-LM section 4: 110M, 134M and 367M are layers and word embeddings in whole millions, rounded down; with absolute positions, token
    types and their normalisation it is up to 0.6 % more. The auxiliary network has four layers of twelve, six of twenty-four, and is as wide."""
    size = SIZES[name]
    config = size.config(size.vocabulary)
    assert AuxiliaryMlm(p_m=0.15, auxiliary="shallow").auxiliary_shape(config) == (layers, size.hidden)
    with torch.device("meta"):
        base = AutoModelForMaskedLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config)).bert
    core = sum(p.numel() for p in base.encoder.parameters()) + base.embeddings.word_embeddings.weight.numel()
    assert published == core // 10**6
    assert 1.0 < sum(p.numel() for p in base.parameters()) / (published * 10**6) < 1.006


class TestFirstWeights:
    @pytest.fixture(params=["bert", "roberta"])
    def folder(self, request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
        return folders[request.param]

    def made(self, folder: Path, seed: int = 1) -> TextEncoder:
        located = locate(f"new:tiny@{folder}")
        assert located.folder is not None
        return load_encoder(located.folder, located.encoder.digest, seed=seed, config=located.config)

    def test_are_a_function_of_the_seed(self, folder: Path) -> None:
        torch.manual_seed(1)
        first = weights_digest(self.made(folder).parts())
        model_module._template.cache_clear()
        torch.manual_seed(2)
        before = torch.get_rng_state()
        assert weights_digest(self.made(folder).parts()) == first
        assert torch.equal(torch.get_rng_state(), before)
        other = self.made(folder, 2).parts()
        mine = self.made(folder).parts()
        assert not any(torch.equal(other[n], t) for n, t in mine.items() if t.dim() > 1)

    def test_spread(self, folder: Path) -> None:
        encoder = self.made(folder)
        assert encoder.fresh_head
        pad = encoder.config.pad_token_id
        for name, tensor in encoder.parts().items():
            if tensor.dim() == 1:
                one = "norm" in name.lower() and name.endswith("weight")
                assert torch.equal(tensor, torch.full_like(tensor, float(one))), name
                continue
            if "word_embeddings" in name:
                assert not tensor[pad].any()
                tensor = torch.cat([tensor[:pad], tensor[pad + 1 :]])
            assert abs(float(tensor.std()) / encoder.config.initializer_range - 1) < 0.1, name
            assert abs(float(tensor.mean())) < 0.004, name


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "distilbert"])
def test_parameters_are_counted_exactly(name: str) -> None:
    assert flops.parameters(tiny.shape_of(name)) == sum(each.numel() for each in tiny.model(name).parameters())
