"""No key moves: one digest per table and preset over all run keys of its plan, as commit b36b579 computed them.

Most plans read nothing: a fixed digest stands for the encoder and each row set is unresolved. What is frozen is everything
else that a key hashes: recipes, presets, chains, parameters, objective versions. The plans of packaged data and encoder
freeze the digests of texts, subsets and weights too. A change that moves a key on purpose bumps a version and a digest here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from harness.encoders import PACKAGED, Located, locate
from harness.specs import Encoder
from harness.tables.plan import make_plan
from harness.tables.request import Request
from harness.tables.resolve import resolve
from harness.tables.table import load_table
from harness.tables.task_reader import Translation
from harness.tables.waves import Start
from harness.tasks import TextSource, open_source

CONFIG: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "vocab_size": 50265,
    "model_type": "roberta",
}
FROZEN: dict[tuple[str, str], str] = {
    ("ablation", "paper"): "600 6497f901b9641d7e",
    ("ablation", "laptop"): "45 842d623e69eabb73",
    ("ablation", "quick"): "30 0950db3652ecf0a0",
    ("coco_lm_ablation", "laptop"): "110 2a97eeb1b79ca934",
    ("coco_lm_ablation", "paper"): "16720 376e41430dfe93d0",
    ("coco_lm_ablation", "quick"): "3 81dcbc4ab8bc8669",
    ("coco_lm_crop", "laptop"): "40 154c5f6df3c00a14",
    ("coco_lm_crop", "paper"): "6080 2663c418a20bb283",
    ("coco_lm_crop", "quick"): "4 e2ea650ea4fbf0d0",
    ("coco_lm_fractions", "laptop"): "20 980077ddcc368614",
    ("coco_lm_fractions", "paper"): "50 30ec166bda9b88a5",
    ("coco_lm_fractions", "quick"): "6 2e26d270755fd35b",
    ("coco_lm_glue", "laptop"): "60 7c48c99c40264f68",
    ("coco_lm_glue", "paper"): "4560 ecce3f29292a026f",
    ("coco_lm_glue", "quick"): "3 4d6ef81f59f82460",
    ("coco_lm_hours", "laptop"): "70 e2613cbf7161ad13",
    ("coco_lm_hours", "paper"): "420 c5e1cbc12b47ae87",
    ("coco_lm_hours", "quick"): "5 f22f17df6eb29b1b",
    ("few_shot", "paper"): "1575 53fc1b4ac09a55ea",
    ("few_shot", "laptop"): "90 b9cbddde3d9d4c3f",
    ("few_shot", "quick"): "30 7460479f2b94b46c",
    ("full_size", "paper"): "75 7abb8de84d60837c",
    ("full_size", "laptop"): "15 4ee1f87183f45ca2",
    ("full_size", "quick"): "10 257e0247e817d837",
    ("learning_curves", "laptop"): "42 a372568da1eef831",
    ("learning_curves", "quick"): "18 3e677190838cbd4a",
    ("mlm_head", "laptop"): "90 b610434d23fd6249",
    ("mlm_head", "quick"): "18 dbcbb66d0698e5c5",
    ("objectives", "paper"): "2835 f94ab85dee95b538",
    ("objectives", "laptop"): "162 7244995342647afc",
    ("objectives", "quick"): "54 23a7e72ce923f4ad",
    ("own", "base"): "12 286d29f25cea1b83",
    ("own", "laptop"): "12 707128060514a905",
    ("own", "quick"): "8 eeb81d7951a4bbd3",
    ("pretraining", "paper"): "3570 bdffe0a3ef71163f",
    ("pretraining", "laptop"): "51 b955f88de2ccdaa6",
    ("pretraining", "quick"): "34 e49344f4c081991a",
    ("scl_batch_size", "grid"): "2160 3328f6046943dd35",
    ("scl_batch_size", "laptop"): "9 2177ebae5cf30fdb",
    ("scl_batch_size", "paper"): "90 9ce35fd98a32890c",
    ("scl_batch_size", "quick"): "9 0f8bb934cf3ceacc",
    ("scl_few_shot", "grid"): "2250 17fd2e437a3aade4",
    ("scl_few_shot", "laptop"): "40 8a0c8e0498ee66b8",
    ("scl_few_shot", "paper"): "180 8404090d46d4e231",
    ("scl_few_shot", "quick"): "40 04c24aa55c45c34f",
    ("scl_full_size", "grid"): "1500 0d67b53559556c52",
    ("scl_full_size", "laptop"): "20 da914e28d0bf04cc",
    ("scl_full_size", "paper"): "120 be3e57a2f38d9298",
    ("scl_full_size", "quick"): "6 ef293e2028d7cd89",
    ("scl_noisy", "laptop"): "100 eb8d99899624c4c4",
    ("scl_noisy", "paper"): "300 5529746fca7a166b",
    ("scl_noisy", "quick"): "40 37852c57b7e56b00",
    ("scl_transfer", "laptop"): "40 cbadb36c4b429477",
    ("scl_transfer", "paper"): "40 4016ccb0e7c76726",
    ("scl_transfer", "quick"): "20 7fb8ab3614d7f807",
    ("taco_base", "laptop"): "36 6a5c14a52cba7905",
    ("taco_base", "paper"): "288 6a54b4eeec4ff8ae",
    ("taco_base", "quick"): "3 9393a64a080ad822",
    ("taco_base", "seeds"): "192 d81b61819a5128a3",
    ("taco_embeddings", "laptop"): "12 266352f4f6bd7d8d",
    ("taco_embeddings", "paper"): "96 3335ba5cce9bd227",
    ("taco_embeddings", "quick"): "3 03db2ea7be37cd13",
    ("taco_fraction", "laptop"): "16 053bf3ca62398c03",
    ("taco_fraction", "paper"): "64 aadf5ff9deb77da4",
    ("taco_fraction", "quick"): "8 0b44497703e033b3",
    ("taco_grid", "laptop"): "32 032bf3d29b63af8e",
    ("taco_grid", "paper"): "256 2fade717ce6fdc29",
    ("taco_grid", "quick"): "8 d3a6d07fd781fab0",
    ("taco_small", "laptop"): "12 8a99cfa59922a14d",
    ("taco_small", "paper"): "96 1f3737e67fd0372f",
    ("taco_small", "quick"): "6 8dba9171c73408b6",
    ("taco_updates", "laptop"): "80 35ee7710652a8dc9",
    ("taco_updates", "paper"): "640 89d9c9ed1092d4de",
    ("taco_updates", "quick"): "6 8432f5083cf49f2a",
    ("taco_variants", "laptop"): "160 add2a7fd0f074669",
    ("taco_variants", "paper"): "1280 aed1f0f48bf0597a",
    ("taco_variants", "quick"): "8 18ad537e35864939",
    ("unlabelled", "laptop"): "36 7ebe495608f522c9",
    ("unlabelled", "paper"): "360 d663b206f69ddd3b",
    ("unlabelled", "quick"): "12 6cfbe3c4a0264683",
    ("views", "laptop"): "30 d68783e1c13d79db",
    ("views", "paper"): "300 3400da3301800548",
    ("views", "quick"): "15 8958a3843db1701c",
}
FROZEN_WITH_DATA = {
    "few_shot": "30 237b8f3561da5546",
    "mlm_head": "18 dab235cc8df3430d",
    "pretraining": "34 22c1ba2c774f5e1d",
}


def digest(table: str, preset: str, source: TextSource | None) -> str:
    """The number of runs, and a digest over their names and keys."""
    loaded = load_table(table)
    resolved = resolve(loaded, Request(preset=preset, tasks=None if loaded.tasks else ("sst2",)))
    name = resolved.encoder
    if source:
        located = locate(name)
    else:
        training = PACKAGED[name].head_training if name in PACKAGED else None
        located = Located(Encoder("7" * 32, name), None, CONFIG, training, new=name.startswith("new:"))
    plan = make_plan(resolved, source, located, translation=Translation(), select=lambda runs: Start(runs[0]))
    keys = "\n".join(sorted(f"{run.name} {run.stage.key}" for run in plan.runs))
    return f"{len(plan.runs)} {hashlib.sha256(keys.encode()).hexdigest()[:16]}"


def test_every_table_and_preset_is_frozen() -> None:
    tables = Path(__file__).resolve().parent.parent / "benchmarks"
    assert {(path.stem, preset) for path in tables.glob("*.yaml") for preset in load_table(path.stem).presets} == set(
        FROZEN
    )


@pytest.mark.parametrize(("table", "preset"), FROZEN)
def test_no_key_moved(table: str, preset: str) -> None:
    assert digest(table, preset, None) == FROZEN[table, preset]


@pytest.mark.parametrize("table", FROZEN_WITH_DATA)
def test_no_key_of_packaged_data_moved(packaged: dict[str, Path], table: str) -> None:
    assert digest(table, "quick", open_source(None)) == FROZEN_WITH_DATA[table]
