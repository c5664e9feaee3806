"""The hub path of encoders, against a stand-in for the hub on loopback: nothing here reaches a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from hub import COMMIT, StandIn, elsewhere, stand_in

from harness.encoders import locate

LOCATE = (
    "from harness.encoders import locate\n"
    "print(locate('me/tiny').encoder.resolved, locate('me/tiny', download=True).encoder.digest, locate('me/tiny').folder)"
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path / "hub") as made:
        yield made


def test_a_model_of_the_hub_is_fetched_once_and_is_the_same_as_its_folder(hub: StandIn, tmp_path: Path) -> None:
    folder = tiny.encoder_folder(tmp_path / "made", "bert")
    shutil.copytree(folder, hub.folder("me/tiny", "models"))
    resolved, digest, where = elsewhere(LOCATE, tmp_path, HF_ENDPOINT=hub.address).split()
    assert resolved == "False"
    assert digest == locate(str(folder)).encoder.digest
    assert COMMIT in where
    assert len(hub.got("safetensors")) == 1
    assert elsewhere(LOCATE, tmp_path, HF_HUB_OFFLINE="1").split() == ["True", digest, where]


def test_a_model_that_the_hub_does_not_have(hub: StandIn, tmp_path: Path) -> None:
    code = (
        "from harness.encoders import locate\nfrom harness.errors import UserError\n"
        "try:\n    locate('me/nothere', download=True)\nexcept UserError as error:\n    print(error)"
    )
    assert "--encoder: the hub has no model me/nothere" in elsewhere(code, tmp_path, HF_ENDPOINT=hub.address)
