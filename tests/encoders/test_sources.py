"""Encoders by name: the digest is of the content, and what is wrong gets one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tiny
import torch
from hub import COMMIT, elsewhere, stand_in
from safetensors.torch import load_file, save_file

from harness.encoders import sources
from harness.encoders.packaged import PACKAGED
from harness.encoders.sources import locate, with_weights
from harness.encoders.tokens import Tokeniser, pretrained_tokenizer
from harness.errors import UserError


@pytest.fixture
def copy(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "copy"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty local cache and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def digest(folder: Path) -> str:
    return locate(str(folder)).encoder.digest


def swap_two_words(folder: Path) -> None:
    body = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = body["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    (folder / "tokenizer.json").write_text(json.dumps(body))


def in_older_files(folder: Path) -> list[str]:
    """Without tokenizer.json. Returns the words."""
    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(ids, key=ids.__getitem__)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return words


def one_sentence(name: Path | str, **options: bool) -> str:
    with pytest.raises(UserError) as caught:
        locate(str(name), **options)
    text = str(caught.value)
    assert text.endswith((".", "none."))
    assert "\n" not in text
    return text


class TestDigest:
    def test_one_file_or_shards(self, bert: Path, tmp_path: Path) -> None:
        made = tiny.model("bert")
        shards = tmp_path / "shards"
        made.save_pretrained(str(shards), max_shard_size="10KB")
        tiny.tokenizer("bert").save_pretrained(str(shards))
        assert len(list(shards.glob("*.safetensors"))) > 2
        assert digest(shards) == digest(bert)

    def test_dates_and_names_do_not_matter(self, copy: Path, bert: Path) -> None:
        for path in copy.iterdir():
            os.utime(path, (1, 1))
        tiny.edit(copy / "config.json", _name_or_path="elsewhere", transformers_version="4.0", architectures=["X"])
        (copy / "README.md").write_text("a model")
        assert digest(copy) == digest(bert)
        assert digest(Path(shutil.move(copy, copy.with_name("moved")))) == digest(bert)

    @pytest.mark.parametrize("change", ["configuration", "weight", "tokenizer"])
    def test_what_changes_it(self, change: str, copy: Path, bert: Path) -> None:
        if change == "configuration":
            tiny.edit(copy / "config.json", layer_norm_eps=1e-5)
        elif change == "tokenizer":
            swap_two_words(copy)
        else:
            weights = load_file(copy / "model.safetensors")
            weights[max(weights)].view(-1)[0] += 1e-4
            save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
        assert digest(copy) != digest(bert)

    @pytest.mark.parametrize("key", ["do_lower_case", "strip_accents"])
    def test_a_tokenizer_setting_that_changes_the_ids(self, key: str, copy: Path) -> None:
        """Of the older files; tokenizer.json is not contradicted (test_pretrained_tokenizer)."""
        in_older_files(copy)
        before, ids = digest(copy), Tokeniser(copy)([("ẃ1 W2",)], 16).ids.tolist()
        tiny.edit(copy / "tokenizer_config.json", **{key: False})
        assert Tokeniser(copy)([("ẃ1 W2",)], 16).ids.tolist() != ids
        assert digest(copy) != before


class TestNew:
    def test_a_size_with_the_tokenizer_of_a_folder(self, folders: dict[str, Path]) -> None:
        for folder in folders.values():
            located, tokenizer = locate(f"new:tiny@{folder}"), pretrained_tokenizer(folder)
            assert (located.name, located.folder) == (f"new:tiny@{folder.name}", folder)
            assert located.new
            assert located.encoder.resolved
            assert located.head_training is None
            expected = {"model_type": "bert", "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
            assert located.config.items() >= {**expected, "max_position_embeddings": 128}.items()

    def test_the_default_tokenizer(self, packaged: dict[str, Path]) -> None:
        located = locate("new:bert-small")
        assert located.name == "new:bert-small"
        assert located == locate("new:bert-small@bert-tiny")
        assert located.folder == locate("bert-tiny").folder
        assert located.config["vocab_size"] == 30_522

    def test_the_tokenizer_of_a_folder_without_an_encoder(self, tmp_path: Path) -> None:
        """One that was trained on other texts (docs/data.md)."""
        trained = tiny.tokenizer("bert").train_new_from_iterator(["a film of films"] * 9, 20)
        trained.save_pretrained(str(tmp_path / "own"))
        located = locate(f"new:tiny@{tmp_path / 'own'}")
        assert (located.name, located.folder) == ("new:tiny@own", tmp_path / "own")
        assert (located.config["vocab_size"], located.config["pad_token_id"]) == (len(trained), trained.pad_token_id)
        ids = Tokeniser(tmp_path / "own")([("a film",)], 16).ids
        assert ids.tolist() == trained("a film")["input_ids"]
        (tmp_path / "own" / "tokenizer.json").unlink()
        assert "has no tokenizer; add the tokenizer.json" in one_sentence(f"new:tiny@{tmp_path / 'own'}")

    def test_identity_is_config_and_tokenizer_not_the_weights(self, copy: Path, bert: Path) -> None:
        def of(folder: Path, size: str = "tiny") -> str:
            return locate(f"new:{size}@{folder}").encoder.digest

        before = of(bert)
        assert before != digest(bert)
        weights = load_file(copy / "model.safetensors")
        save_file({n: t + 1 for n, t in weights.items()}, copy / "model.safetensors", metadata={"format": "pt"})
        tiny.edit(copy / "config.json", initializer_range=0.5)
        assert of(copy) == before
        assert len({before, *(of(bert, size) for size in ("bert-small", "bert-base"))}) == 3
        swap_two_words(copy)
        assert of(copy) != before

    def test_a_configuration_stays(self) -> None:
        """Frozen: with another one, whatever is recorded for a new encoder would be trained again."""
        config = json.dumps(sources.SIZES["tiny"].config(30_522))
        assert hashlib.sha256(config.encode()).hexdigest()[:16] == "5c82d8b695b15acf"

    def test_a_tokenizer_that_is_not_at_hand(self, hub: Path) -> None:
        located = locate("new:coco-lm-base@roberta-base")
        assert located.new
        assert not located.encoder.resolved
        assert located.folder is None
        assert located.name == "new:coco-lm-base@roberta-base"
        assert located.config["vocab_size"] == 50_265
        assert locate("new:coco-lm-base@someone/other").config["vocab_size"] == 32_768
        assert "cannot be fetched (HF_HUB_OFFLINE is set)" in one_sentence(
            "new:coco-lm-base@roberta-base", download=True
        )

    def test_an_unknown_tokenizer(self, tmp_path: Path, hub: Path) -> None:
        assert "Did you mean 'bert-tiny'?" in one_sentence("new:tiny@bert-tyny")
        assert "no such folder" in one_sentence(f"new:tiny@{tmp_path}/nothing")


class TestWrongFolders:
    def test_no_such_folder(self, tmp_path: Path) -> None:
        assert "no such folder" in one_sentence(tmp_path / "nothing")

    def test_no_weights(self, copy: Path) -> None:
        (copy / "model.safetensors").unlink()
        assert "no model.safetensors" in one_sentence(copy)

    @pytest.mark.parametrize("content", [b"{", b'"bert"', b"\xff"])
    def test_a_broken_config(self, content: bytes, copy: Path) -> None:
        (copy / "config.json").write_bytes(content)
        assert "config.json" in one_sentence(copy)

    @pytest.mark.parametrize("kind", ["bert", "roberta"])
    def test_no_tokenizer(self, kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
        """The library would make an empty one, with which every word is unknown."""
        copy = Path(shutil.copytree(folders[kind], tmp_path / "copy"))
        (copy / "tokenizer.json").unlink()
        assert "has no tokenizer; add the tokenizer.json or" in one_sentence(copy)
        (copy / ("merges.txt" if kind == "roberta" else "vocab.json")).write_text("{}")
        assert "has no tokenizer" in one_sentence(copy)

    @pytest.mark.parametrize(("rows", "fits"), [(1.0, True), (1.1, True), (2.0, True), (2.1, False), (0.9, False)])
    def test_a_vocabulary_and_its_embedding(self, rows: float, fits: bool, copy: Path) -> None:
        ids = len(tiny.tokenizer("bert"))
        tiny.edit(copy / "config.json", vocab_size=round(rows * ids))
        if fits:
            assert locate(str(copy)).config["vocab_size"] == round(rows * ids)
        else:
            assert f"has a tokenizer with {ids} ids for an embedding of {round(rows * ids)} rows" in one_sentence(copy)

    def test_a_tokenizer_that_adds_no_token(self, copy: Path) -> None:
        """The state of the first word would stand for the text."""
        tiny.edit(copy / "tokenizer.json", post_processor=None)
        assert "puts no token before or after a text" in one_sentence(copy)

    def test_a_vocabulary_in_the_older_files(self, copy: Path) -> None:
        words = in_older_files(copy)
        assert locate(str(copy)).config["vocab_size"] == len(words)
        tiny.edit(copy / "config.json", vocab_size=len(words) + 1)
        before = digest(copy)
        (copy / "added_tokens.json").write_text(json.dumps({"more": len(words)}))
        assert digest(copy) != before, "another word is one token"
        tiny.edit(copy / "config.json", vocab_size=len(words))
        assert f"a tokenizer with {len(words) + 1} ids" in one_sentence(copy)
        (copy / "added_tokens.json").unlink()
        (copy / "vocab.txt").write_text("[PAD]\n[UNK]\n")
        assert "a tokenizer with 5 ids" in one_sentence(copy)

    def test_a_configuration_that_no_encoder_has(self, copy: Path) -> None:
        wrong = {"num_hidden_layers": 0, "hidden_size": "wide", "vocab_size": 2.5, "max_position_embeddings": None}
        wrong |= {"num_attention_heads": True, "pad_token_id": "[PAD]", "position_embedding_type": "relative_key"}
        path = copy / "config.json"
        right = path.read_text()
        for name, value in wrong.items():
            tiny.edit(path, **{name: value})
            assert f"config.json: {name} is {value!r}, " in one_sentence(copy)
            path.write_text(right)

    def test_broken_safetensors(self, copy: Path) -> None:
        path = copy / "model.safetensors"
        for content in (b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", path.read_bytes()[:-100]):
            path.write_bytes(content)
            assert "model.safetensors is not a safetensors file" in one_sentence(copy)

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        shards = tmp_path / "shards"
        tiny.model("bert").save_pretrained(str(shards), max_shard_size="10KB")
        tiny.tokenizer("bert").save_pretrained(str(shards))
        next(shards.glob("*-00001-of-*.safetensors")).unlink()
        with pytest.raises(UserError, match=f"The encoder in {shards} cannot be loaded: .*-00001-of-"):
            with_weights(locate(str(shards)))


class TestPickles:
    def test_a_plain_one_is_read(self, copy: Path, bert: Path) -> None:
        torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
        (copy / "model.safetensors").unlink()
        before = digest(copy)
        found, expected = tiny.encoder(copy).parts(), tiny.encoder(bert).parts()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        torch.save({}, copy / "pytorch_model.bin")
        assert digest(copy) != before

    def test_a_malicious_one_is_refused(self, copy: Path, tmp_path: Path) -> None:
        class Malice:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(tmp_path / "owned"),)

        (copy / "model.safetensors").unlink()
        torch.save({"bert.embeddings.word_embeddings.weight": Malice()}, copy / "pytorch_model.bin")
        with pytest.raises(UserError, match="cannot be loaded"):
            tiny.encoder(copy)
        assert not (tmp_path / "owned").exists()


class TestNames:
    @pytest.mark.parametrize("name", ["x" * 300, "~nobody_x", "~nobody_x/encoder"])
    def test_a_name_that_cannot_be_looked_up(self, name: str, hub: Path) -> None:
        assert name[:40] in one_sentence(name)

    @pytest.mark.parametrize("name", ["roberta-base", "someone/some-encoder"])
    def test_a_hub_id_not_at_hand(self, name: str, hub: Path) -> None:
        """A plan takes it, with the published shape of some."""
        located = locate(name)
        assert (located.name, located.folder, located.encoder.resolved) == (name, None, False)
        assert located.config.get("hidden_size") == {"roberta-base": 768}.get(name)
        assert f"model {name} is not in the hub cache and cannot be fetched" in one_sentence(name, download=True)

    def test_a_model_of_the_hub_is_fetched_once_and_is_the_same_as_its_folder(self, bert: Path, tmp_path: Path) -> None:
        code = (
            "from harness.encoders import locate\nfor download in (False, True, False):\n"
            "    found = locate('me/tiny', download=download)\n    print(found.encoder.digest, found.folder)"
        )
        with stand_in(tmp_path / "hub") as made:
            shutil.copytree(bert, made.folder("me/tiny", "models"))
            _, *found = elsewhere(code, tmp_path, HF_ENDPOINT=made.address).splitlines()
            assert len(made.got("safetensors")) == 1
        assert found[0].startswith(f"{digest(bert)} ")
        assert COMMIT in found[0]
        assert {*found, *elsewhere(code, tmp_path, HF_HUB_OFFLINE="1").splitlines()} == {found[0]}

    @pytest.mark.parametrize("name", list(PACKAGED))
    def test_packaged(self, name: str, packaged: dict[str, Path]) -> None:
        located = locate(name)
        assert located.encoder.resolved
        assert located.head_training is not None
        assert located.contaminated == (("mnli", "qqp") if name == "minilm" else ())
