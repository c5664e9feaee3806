"""Back-translation: views side by side, made once, one line for each text; and what is missing is said in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub import elsewhere, stand_in
from tasks.tiny_translators import SENTENCES, fsmt, marian

from harness.errors import NotAtHand, UserError
from harness.store import Store
from harness.tasks import translation
from harness.tasks.rows import Rows
from harness.tasks.translation import ModelPair, Translator, open_translator, translate, translated

ODD = (
    "two\nlines\r\nand a\ttab",
    "日本語 😀 \u2028 separator \x85 next",
    "a long one " * 91,
    "...",
    "nul\0inside",
    "  spaces  outside  ",
)


class Kept(dict[str, str]):
    """A cache that knows what it was asked to keep."""

    def translations(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: self[key] for key in keys if key in self}

    def keep_translations(self, texts: Mapping[str, str]) -> None:
        for key, text in texts.items():
            self.setdefault(key, text)


class Words:
    """A way that marks a text, and knows what it was given. Breaks down once it has translated `until` texts."""

    key, known, translate = ModelPair.key, ModelPair.known, ModelPair.translate

    def __init__(self, mark: str, until: int = 1000) -> None:
        self.digest, self.mark, self.until = mark, mark, until
        self.given: list[str] = []

    def translations(self, texts: Sequence[str]) -> list[str]:
        if len(self.given) + len(texts) > self.until:
            raise UserError("It broke down.")
        self.given += texts
        return ["" if "untranslatable" in text else f"{self.mark}({text})" for text in texts]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "CHUNK", 3)


def translator(*ways: Any) -> Translator:
    return Translator("stand-in", ways)


def singles(*texts: str, labels: bool = True) -> Rows:
    codes = np.arange(len(texts), dtype=np.int64) % 2 if labels else None
    return Rows(tuple((text,) for text in texts), codes)


def views(rows: Rows, through: Translator, cache: Kept | Store) -> Rows:
    translate([rows], through, cache)
    made = translated(rows.unlabelled(), through, cache)
    assert made is not None
    return made


def said(name: str, *, download: bool = False, error: type[UserError] = UserError) -> str:
    """The one sentence."""
    with pytest.raises(UserError) as caught:
        open_translator(name, download=download)
    assert caught.type is error
    text = str(caught.value)
    assert text.startswith(f"translator '{name}': ")
    assert text.endswith(".")
    assert "\n" not in text
    return text


class TestViews:
    """What is made of rows, whatever the translator."""

    def test_views_stand_side_by_side_in_canonical_order(self) -> None:
        rows, two = singles(*"abcdefgaa"), translator(Words("1"), Words("2"))
        made = views(rows, two, Kept())
        assert [sorted(way.given) for way in two.ways] == [[*"abcdefg"]] * 2, "equal rows stay and are translated once"
        assert len(made) == 9
        assert set(made.texts) == {(f"1({t})", f"2({t})") for t in "abcdefg"}
        assert made.labels is None
        assert made.texts == made.sorted().texts
        other = views(rows.take([3, 1, 6, 8, 0, 7, 2, 5, 4]), two, Kept())
        assert (other.texts, other.digest) == (made.texts, made.digest)
        pairs = Rows((("p ", "h"), ("q", "h")), None)
        assert set(views(pairs, two, Kept()).texts) == {
            ("1(p )", "1(h)", "2(p )", "2(h)"),
            ("1(q)", "1(h)", "2(q)", "2(h)"),
        }
        one = translator(Words("1"))  # view 0 is then the text itself
        assert views(pairs.take([0]), one, Kept()).texts == (("p ", "h", "1(p )", "1(h)"),)
        assert [each.num_views for each in (one, two, translator(*map(Words, "123")))] == [2, 2, 3]

    def test_a_blank_translation_leaves_the_text_and_is_counted(self) -> None:
        rows = Rows((("untranslatable", "a"), ("untranslatable", ""), (" \n", "b")), None)
        cache, two = Kept(), translator(Words("1"), Words("2"))
        assert [translate([rows], two, cache) for _ in range(2)] == [2, 2], "one text, two views"
        assert set(views(rows, two, cache).texts) == {
            ("untranslatable", "1(a)", "untranslatable", "2(a)"),
            ("untranslatable", "", "untranslatable", ""),
            (" \n", "1(b)", " \n", "2(b)"),
        }

    def test_what_is_kept_is_not_asked_again(self) -> None:
        cache, seen, again = Kept(), list[int](), (Words("1"), Words("2"))
        views(singles(*"abc"), translator(Words("1"), Words("2")), cache)
        assert translated(singles(*"abcd", labels=False), translator(*again), cache) is None
        translate([singles(*"dcba")], translator(*again), cache, seen.append)
        assert [way.given for way in again] == [["d"], ["d"]]
        assert seen == [3, 3, 4]
        assert translated(singles(*"abc", labels=False), translator(Words("1"), Words("3")), cache) is None

    def test_killed_half_way_it_goes_on(self, tmp_path: Path) -> None:
        rows = singles(*(f"text {i}" for i in range(20)))
        url = f"sqlite:///{tmp_path / 'harness.db'}"
        broken = (Words("1"), Words("2", until=7))
        with pytest.raises(UserError, match="It broke down"):
            translate([rows], translator(*broken), Store(url))
        assert [len(way.given) for way in broken] == [20, 6]
        again = (Words("1"), Words("2"))
        made = views(rows, translator(*again), Store(url))
        assert again[0].given == []
        assert sorted(again[1].given + broken[1].given) == sorted(text for (text,) in rows.texts)
        assert made.digest == views(rows, translator(Words("1"), Words("2")), Kept()).digest

    def test_the_first_that_was_kept_is_the_one_that_is_used(self) -> None:
        """Two drivers that translate one text at the same moment train on the same view."""

        class Late(Kept):
            def keep_translations(self, texts: Mapping[str, str]) -> None:
                super().keep_translations({key: f"another's {text}" for key, text in texts.items()})

        assert views(singles("a"), translator(Words("1")), Late()).texts == (("a", "another's 1(a)"),)

    @pytest.mark.parametrize("columns", [1, 2])
    def test_copies_stand_beside_their_rows_with_their_labels(self, columns: int) -> None:
        texts = [*(tuple(f"{letter}{column}" for column in range(columns)) for letter in "abcd"), (" ",) * columns]
        for labels in (np.array([0, 1, 2, 1, 0], dtype=np.int64), np.linspace(0, 5, 5).astype(np.float32)):
            rows, ways, cache = Rows(tuple(texts), labels), translator(*map(Words, "xyz")), Kept()
            assert translated(rows, ways, cache) is None
            translate([rows], ways, cache)
            made, again = translated(rows, ways, cache), translated(rows.take([3, 1, 4, 0, 2]), ways, cache)
            assert made is not None
            assert again is not None
            expected = [
                (tuple(f"{mark}({text})" if mark and text.strip() else text for text in row), label)
                for mark in ("", *"xyz")
                for row, label in zip(texts, labels, strict=True)
            ]
            assert sorted(zip(made.texts, made.gold, strict=True)) == sorted(expected)
            assert (made.texts, made.gold.dtype) == (made.sorted().texts, labels.dtype)
            assert (again.digest, again.texts) == (made.digest, made.texts)


class TestNames:
    """A name that means nothing is one sentence with what could be meant."""

    @pytest.mark.parametrize(
        ("name", "part"),
        [
            ("", "there is no such translator. Write opus-mt:de,zh"),
            ("opusmt:de", "Did you mean 'opus-mt'?"),
            ("opus-mt:de,de", "'de,de' names a language twice"),
            ("file:views.csv@T=0.7", "a file cannot sample; where a row sets the temperature, name models"),
            ("opus-mt:de@T=0", "a temperature above 0"),
            ("./nowhere+c", "'./nowhere' is neither a folder nor an id of the hub"),
            ("file:views.txt", "views.txt: is none of .parquet, .csv, .jsonl"),
        ],
    )
    def test_malformed(self, name: str, part: str) -> None:
        assert part in said(name)

    def test_python_packages_that_are_missing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "fsmt"}')
        (tmp_path / "model.safetensors").write_bytes(b"")
        monkeypatch.setattr(translation.importlib.util, "find_spec", lambda name: None)
        assert "run `pip install sentencepiece sacremoses`" in said(f"{tmp_path}+{tmp_path}", error=NotAtHand)


class TestFile:
    """The user's own views."""

    def test_views_as_they_are(self, tmp_path: Path) -> None:
        path = tmp_path / "views@home.csv"
        path.write_text('text,"view_1",view_2,note\na,"A, 1","A\n2",x\nb,B1,"",y\n')
        found, cache = open_translator(f"file:{path}", download=False), Kept()
        assert (found.num_views, found.name) == (2, f"file:{path}")
        assert set(views(singles("b", "a"), found, cache).texts) == {("A, 1", "A\n2"), ("B1", "b")}
        assert (translate([singles("b", "a")], found, cache), cache) == (1, {})
        wrong = Rows((("a",), ("missing",), ("also missing",)), None)
        with pytest.raises(UserError, match=r"no row for the text '(also )?missing' and 1 more; add it\.$"):
            translated(wrong, found, Kept())

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ("text,view1\na,A\n", "there is no column 'view_1'. Did you mean 'view1'?"),
            ("text,view_1\na,A\nb,B\na,C\n", "line 4: the views of 'a' are not those of"),
        ],
    )
    def test_what_is_wrong_in_it(self, content: str, part: str, tmp_path: Path) -> None:
        path = tmp_path / "views.csv"
        path.write_text(content)
        with pytest.raises(UserError) as caught:
            open_translator(f"file:{path}", download=False)
        assert part in str(caught.value)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of two tiny models, random ones: what they say means nothing."""
    root = tmp_path_factory.mktemp("marian")
    return marian(root / "there", 1), marian(root / "back", 2)


class TestModels:
    """Pairs of models from folders."""

    @pytest.mark.parametrize("family", ["marian", "fsmt"])
    def test_as_the_library_translates_one_text(self, family: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
        """Beam search of each text by itself, without padding, by the library's own tokenizer and model."""
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        if family == "fsmt":
            pair = fsmt(tmp_path / "en-de", 1, "en", "de"), fsmt(tmp_path / "de-en", 2, "de", "en")
        found = list(SENTENCES)
        for folder in pair:
            tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
            model: Any = AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
            for i, text in enumerate(found):
                inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=48)
                longest = min(47, 2 * (-(-inputs["input_ids"].shape[1] // 16) * 16) + 16)
                beams = model.generation_config.num_beams or 1
                out = model.generate(**inputs, num_beams=beams if beams > 1 else 5, max_new_tokens=longest)
                found[i] = " ".join(tokenizer.decode(out[0], skip_special_tokens=True).split())
        there, back = pair
        (way,) = open_translator(f"{there}+{back}", download=False).ways
        assert way.translations(SENTENCES) == found
        assert way.translations(SENTENCES[::-1]) == found[::-1]

    def test_one_line_for_each_text_whatever_it_holds(self, pair: tuple[Path, Path]) -> None:
        there, back = pair
        made = views(singles(*ODD), open_translator(f"{there}+{back}@T=1", download=False), Kept())
        assert {text for text, _ in made.texts} == {*ODD}
        assert all(view == text or view == " ".join(view.split()) for text, view in made.texts)

    def test_a_sample_depends_on_text_view_and_temperature_alone(self, pair: tuple[Path, Path]) -> None:
        there, back = pair
        name, texts = f"{there}+{back}", SENTENCES[:3]
        two = open_translator(f"{name}@T=0.7", download=False, copies=2).ways
        first, second = (way.translations(texts) for way in two)
        assert first != second
        assert two[0].translations(texts[::-1])[::-1] == first
        assert two[0].translations(texts[:1]) == first[:1]
        ways = (open_translator(f"{name}{end}", download=False).ways[0] for end in ("@T=0.7", "@T=1.5", ""))
        again, hot, beam = ways
        assert again.translations(texts[:1]) == first[:1] != hot.translations(texts[:1])
        assert len({way.digest for way in (*two, hot, beam)}) == 4
        assert again.digest == two[0].digest
        pairs = open_translator(f"{name},{name}@T=0.7", download=False, copies=2).ways
        assert [way.digest for way in pairs] == [way.digest for way in two], "one more copy keeps the others"
        with pytest.raises(
            UserError, match=r"gives 1 back-translation of a text, and 2 are needed; name more pivots, or one pair"
        ):
            open_translator(name, download=False, copies=2)

    def test_the_digest_is_of_the_models(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        there, back = pair
        copies = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in pair]
        digest = open_translator(f"{there}+{back}", download=False).ways[0].digest
        assert open_translator(f"{copies[0]}+{copies[1]}", download=False).ways[0].digest == digest
        assert open_translator(f"{copies[1]}+{copies[0]}", download=False).ways[0].digest != digest
        name = "vocab.json"
        (copies[0] / name).write_text((copies[0] / name).read_text() + "\n")
        assert open_translator(f"{copies[0]}+{copies[1]}", download=False).ways[0].digest != digest

    def test_a_folder_that_is_not_such_a_model(self, pair: tuple[Path, Path], tmp_path: Path, bert: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        assert "but one of type 'bert'" in said(f"{bert}+{bert}")
        assert "but one of type 'unknown'" in said(f"{tmp_path}+{tmp_path}")
        there = Path(shutil.copytree(pair[0], tmp_path / "there"))
        (there / "model.safetensors").unlink()
        assert f"{there} holds no Marian (opus-mt) or FSMT (wmt19) model with its weights" in said(f"{there}+{pair[1]}")
        tensors = load_file(pair[0] / "model.safetensors")
        torch.save(tensors, there / "pytorch_model.bin")
        way, whole = (open_translator(f"{each}+{pair[1]}", download=False).ways[0] for each in (there, pair[0]))
        assert way.translations(SENTENCES[:2]) == whole.translations(SENTENCES[:2]), "also from a pickle of tensors"
        (there / "model.safetensors").write_bytes(b"not a model")
        lost = {name: tensor for name, tensor in tensors.items() if "decoder.layers.0.fc1" not in name}
        for reason in ("SafetensorError", "its weights lack model.decoder.layers.0.fc1"):
            broken = open_translator(f"{there}+{pair[1]}", download=False)
            with pytest.raises(
                UserError, match=rf"cannot be loaded as a translation model .*{reason}.*; fetch it again"
            ):
                views(singles("a"), broken, Kept())
            save_file(lost, there / "model.safetensors", {"format": "pt"})


def test_a_model_of_several_languages_is_told_which(tmp_path: Path) -> None:
    code, seeds = ">>cmn_Hans<<", [(0, 0, 0)]
    (way,) = open_translator(
        f"{marian(tmp_path / 'opus-mt-en-zh', 1, code)}+{marian(tmp_path / 'plain', 1)}", download=False
    ).ways
    there, back = way.there, way.back
    assert (there.code, back.code) == (code, "")
    told = replace(there, code="").translate([f"{code} The film"], 0, seeds)
    assert there.translate(["The film"], 0, seeds) == told
    assert replace(back, code=code).translate(["The film"], 0, seeds) == back.translate(["The film"], 0, seeds)


def test_models_of_the_hub_are_fetched_once_and_are_the_same_as_their_folders(tmp_path: Path) -> None:
    def said(download: bool, **variables: str) -> list[str]:
        """What a fresh process with a hub cache of its own says: a digest, or an error."""
        code = (
            "from harness.errors import UserError\nfrom harness.tasks.translation import open_translator\n"
            f"try:\n    print([way.digest for way in open_translator('opus-mt:xx', download={download}).ways])\n"
            "except UserError as error:\n    print(type(error).__name__, error, sep='\\n')"
        )
        return elsewhere(code, tmp_path, **variables).splitlines()

    with stand_in(tmp_path / "hub") as hub:
        folders = [hub.folder(f"Helsinki-NLP/opus-mt-{way}", "models") for way in ("en-xx", "xx-en")]
        for seed, folder in enumerate(folders, start=1):
            marian(folder, seed)
        assert said(False, HF_ENDPOINT=hub.address)[0] == "NotFetched"
        assert hub.asked == [], "nothing is asked for a plan"
        fetched = said(True, HF_ENDPOINT=hub.address)
        (way,) = open_translator("+".join(map(str, folders)), download=False).ways
        assert fetched == [str([way.digest])]
        assert len(hub.got("model.safetensors")) == 2
        assert said(False, HF_HUB_OFFLINE="1") == fetched
