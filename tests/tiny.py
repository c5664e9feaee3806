"""Tiny random encoders of each model type, with a small real tokenizer, as folders a stage can start from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from family_encoders import config_of, model_of
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from harness.commands.contract import Subject
from harness.encoders.families import FAMILIES, family_of
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder, load_encoder, set_dropout
from harness.encoders.sources import locate
from harness.encoders.tokens import Examples, Tokeniser, Tokens, Vocabulary
from harness.encoders.tokens.reading import Cloze
from harness.kinds import kind_of_outputs
from harness.methods import DEFINITIONS, METHODS, RunContext, chain, definition_of, hyperparameters, objective
from harness.objectives import build
from harness.objectives.base import Draw
from harness.prompts import Prompt
from harness.running import run_stage
from harness.specs import Data, Encoder, Objective, Optim, Parent, Record, RowSet, Selection, Stage
from harness.storage import Storage, WorkerSetup
from harness.streams import stream
from harness.training import loop
from harness.training.loop import Inputs

WORDS = (*(f"w{i}" for i in range(40)), "good", "bad", "##ish")
KINDS = ("bert", "roberta", "electra", "mpnet", "distilbert")
MORE = ("modernbert", "deberta-v2", "albert")
"""Families whose layers are not named as BERT's are."""
_AFTER_PADDING = {"max_position_embeddings": 66, "pad_token_id": 1}
_OWN: dict[str, dict[str, Any]] = {
    "roberta": _AFTER_PADDING,
    "mpnet": _AFTER_PADDING,
    # Windows of 4 tokens to each side in the second and the last layer: most texts are longer.
    "modernbert": {
        "num_hidden_layers": 4,
        **{"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3},
    },
}


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """WordPiece over `WORDS`, with the special tokens, their places and the token types of the model type."""
    first, last, pad, unknown, mask = special = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
    order, between = (pad, unknown, first, last, mask), f"{last}:0 $B:1 {last}:1"
    if FAMILIES[kind].after_padding:
        first, last, pad, unknown, mask = special = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
        order, between = (first, pad, last, unknown, mask), f"{last}:0 {last}:0 $B:0 {last}:0"
    ids = {token: i for i, token in enumerate((*order, *WORDS))}
    made = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {between}",
        special_tokens=[(first, ids[first]), (last, ids[last])],
    )
    names = dict(zip(("cls_token", "sep_token", "pad_token", "unk_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def texts(count: int, seed: int = 0, pairs: bool = False) -> tuple[list[tuple[str, ...]], NDArray[np.int64]]:
    """Rows of one or two texts of 1 to 12 words, and labels that the words tell (`good` or `bad` somewhere)."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count)

    def sentence(label: int) -> str:
        words = [f"w{i}" for i in generator.integers(0, 30, generator.integers(1, 12))]
        words.insert(int(generator.integers(0, len(words) + 1)), ("bad", "good")[label])
        return " ".join(words)

    return [tuple(sentence(int(label)) for _ in range(1 + pairs)) for label in labels], labels


def draw_of(seed: int = 1, step: int = 1) -> Draw:
    return lambda purpose, *more: stream(seed, purpose, step, *more)


def config(kind: str) -> Any:
    numbers = {"num_hidden_layers": 2, "vocab_size": len(tokenizer(kind)), "max_position_embeddings": 64}
    return config_of(kind, **{**numbers, **_OWN.get(kind, {})})


def shape_of(kind: str) -> dict[str, Any]:
    """The numbers of the tiny encoder, under BERT's names."""
    found = config(kind).to_dict()
    return family_of(found).shape(found)


def model(kind: str, seed: int = 0) -> Any:
    return model_of(config(kind), seed)


def encoder_folder(root: Path, kind: str) -> Path:
    """A folder with a tiny encoder of the model type, as save_pretrained writes it."""
    folder = root / f"tiny-{kind}"
    model(kind).save_pretrained(str(folder))
    tokenizer(kind).save_pretrained(str(folder))
    return folder


def plain_model(folder: Path, attention: str = "eager") -> Any:
    """The library's own model on padded batches, without dropout."""
    made = AutoModelForMaskedLM.from_pretrained(str(folder), attn_implementation=attention, dtype=torch.float32)
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made


@lru_cache(maxsize=8)
def tokeniser(folder: Path) -> Tokeniser:
    return Tokeniser(folder)


def tokens(folder: Path, rows: Sequence[tuple[str, ...]], max_length: int = 64) -> Tokens:
    return tokeniser(folder)(rows, max_length)


def vocabulary(folder: Path) -> Vocabulary:
    return tokeniser(folder).vocabulary


def encoder(folder: Path, seed: int = 0) -> TextEncoder:
    return load_encoder(folder, locate(str(folder)).encoder.digest, seed=seed)


def padded(batch: Tokens, ids: NDArray[Any] | None = None, pad: int = 0) -> dict[str, torch.Tensor]:
    """An ordinary padded batch [B, L]: input_ids, token_type_ids, attention_mask."""
    flat, width = batch.ids if ids is None else ids, int(batch.lengths.max())
    out = {
        "input_ids": torch.full((len(batch), width), pad, dtype=torch.long),
        "token_type_ids": torch.zeros(len(batch), width, dtype=torch.long),
        "attention_mask": torch.zeros(len(batch), width, dtype=torch.long),
    }
    for i, (start, stop) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        out["input_ids"][i, : stop - start] = torch.as_tensor(flat[start:stop].astype(np.int64))
        out["token_type_ids"][i, : stop - start] = torch.as_tensor(batch.types[start:stop].astype(np.int64))
        out["attention_mask"][i, : stop - start] = 1
    return out


def packed(lengths: Sequence[int]) -> Batch:
    """Sequences of these lengths, of one token."""
    count = sum(lengths)
    tokens = Tokens(
        np.ones(count, np.int32), np.zeros(count, np.int8), np.zeros(count, np.bool_), np.cumsum([0, *lengths])
    )
    return Batch.of(tokens, torch.device("cpu"))


def optim(**changes: Any) -> Optim:
    return Optim(**{"lr": 1e-3, "batch_size": 8, "steps": 12, "dropout": 0.1, **changes})


PROMPT = Prompt("{first} w1 [MASK]", ("bad", "good"), draws=3)
"""What a stage with the objective 'prompt' reads its rows by."""


def of_method(name: str, *, stage: int = -1, **values: Any) -> Objective:
    """The objective that a method writes into one of its own stages, at a batch of 8."""
    method, text = METHODS[name], Data(RowSet("texts"), views=2)
    rows, selection = Data(RowSet("rows"), 2), Selection("accuracy")
    context = RunContext(
        "task", 0, 0, 1, rows, text, optim(), optim(), selection, Encoder("e"), translated=text, prompt=PROMPT
    )
    stages = chain([hyperparameters(method, values, "tiny")], context)
    return (stages if method.labelled else stages[:-1])[stage].objective


_TOKENS: dict[str, Any] = {"contrast_group": 4, "num_negatives": 3, "window": 5, "weight": 0.7}
OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": objective("cross_entropy"),
    "scl": objective("scl", lam=0.5, contrast_group=16),
    "mlm": objective("mlm", p_m=0.15),
    "mlm_head": objective("mlm_head", p_m=0.15),
    "cmlm-simsiam": of_method("cmlm", num_views=2),
    "cmlm-simclr": of_method("cmlm", num_views=2, contrast="simclr", temperature=0.2, contrast_group=4),
    "mlm-tp": of_method("mlm", token_prediction=True),
    "mlm-special": of_method("mlm", mask_special_tokens=True),
    "cssl-simclr": of_method("cssl", temperature=0.2, contrast_group=4),
    "cssl-simsiam": of_method("cssl", contrast="simsiam"),
    # Its own 0.05 makes float32 errors of a cosine (6e-8) 1.2e-6 of a loss.
    "simcse": of_method("simcse", temperature=0.2, contrast_group=4),
    "taco": of_method("taco", **_TOKENS),
    "taco-concentrated": of_method("taco", **_TOKENS, concentrated=True),
    "electra-shallow": of_method("electra", auxiliary="shallow"),
    "electra-narrow": of_method("electra"),
    "electra-dropout": of_method("electra", auxiliary="shallow", sampling_dropout=True),
    "coco_lm": of_method("coco_lm", contrast_group=4),
    "coco_lm-no_lm": of_method("coco_lm", contrast_group=4, lm="none"),
    "coco_lm-softmax": of_method("coco_lm", contrast_group=4, lm="softmax"),
    "coco_lm-all_token": of_method("coco_lm", contrast_group=4, lm="all_token", rtd=False, stop_gradient=False),
    "coco_lm-no_contrast": of_method("coco_lm", contrast=False),
    "coco_lm-random": of_method("coco_lm", contrast_group=4, replacements="random"),
    "coco_lm-converged": of_method("coco_lm", contrast_group=4, replacements="converged"),
    "coco_lm-no_stop": of_method("coco_lm", contrast_group=4, stop_gradient=False),
    "auxiliary_mlm": of_method("coco_lm", stage=0, contrast_group=4, replacements="converged"),
}
"""Every objective and what its settings switch: the contract of tests/objectives takes up what is added here."""
for _method in METHODS.values():
    _spec = of_method(_method.name)
    if _spec.name not in {spec.name for spec in OBJECTIVES.values()} and not DEFINITIONS[_spec.name].fitted:
        OBJECTIVES[_spec.name] = _spec  # an objective that no entry names, at its method's defaults
SUPERVISED = tuple(name for name, spec in OBJECTIVES.items() if DEFINITIONS[spec.name].labelled)
METRICS = ("accuracy",)


def trains(kind: str, name: str) -> bool:
    """Whether the objective can train this kind of encoder."""
    return not definition_of(OBJECTIVES[name]).refused(shape_of(kind))


ALLOWED = [(kind, name) for name in OBJECTIVES for kind in KINDS if trains(kind, name)]
"""Which kinds of encoder can be trained with which objective."""
SPREAD = []
"""Each objective in one kind that it trains, by turns."""
for _number, _name in enumerate(OBJECTIVES):
    _kinds = [kind for kind, name in ALLOWED if name == _name]
    SPREAD.append((_kinds[_number % len(_kinds)], _name))


def edit(path: Path, **changes: Any) -> None:
    """Change some values of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def changed(name: str, **params: Any) -> Objective:
    """One of OBJECTIVES with other values of some parameters."""
    return replace(OBJECTIVES[name], params={**OBJECTIVES[name].params, **params})


def views_in(spec: Objective) -> int:
    """Views of each text that a stage with this objective reads."""
    return 1 + int(spec.params["num_views"]) if spec.name == "cssl" else 1


def built(
    folder: Path,
    spec: Objective,
    *,
    seed: int = 1,
    num_labels: int = 2,
    dropout: float = 0.0,
    relative: tuple[int, int] = (0, 0),
) -> Any:
    """The objective as a module on a fresh copy of the encoder, with relative positions where there are buckets; in
    training mode."""
    beginning = encoder(folder)
    if relative[0]:
        beginning.add_relative_positions(*relative)
    made = build(spec, beginning, vocabulary(folder), kind_of_outputs(num_labels), seed)
    set_dropout(made, dropout)
    if spec.name == "prompt":
        rows, labels = texts(20, 1)
        made.take_training_set(read(folder, rows, spec), labels)
    return made.train()


def examples(tokens: Tokens, views: int = 1) -> Examples:
    """Of sequences that are the first views of n texts, then their second ones, and so on."""
    if views == 1:
        return Examples(tokens)
    order = np.arange(len(tokens)).reshape(views, -1).T
    return Examples(tokens.take(order.ravel()), np.arange(len(order) + 1) * views)


def read(folder: Path, rows: Sequence[tuple[str, ...]], spec: Objective) -> Examples:
    """Rows as a stage with this objective reads them: clozes where it prompts, else a sequence of each; see `examples` for views."""
    if spec.name != "prompt":
        return examples(tokens(folder, rows), views_in(spec))
    return Cloze(64, prompt=PROMPT).examples(rows, tokeniser(folder))


def subject(folder: Path, name: str, lengths: Sequence[int] = (), dropout: float = 0.0, **params: Any) -> Subject:
    """An objective on nine texts, or on texts of so many tokens. `p_m`: where it has one."""
    if "p_m" not in OBJECTIVES[name].params:
        params.pop("p_m", None)
    spec = changed(name, **params)
    rows = [(" ".join(["w1"] * (length - 2)),) for length in lengths] or texts(9, seed=4)[0]
    labels = np.arange(len(rows)) % 2 if DEFINITIONS[spec.name].labelled else None
    whole = [*rows, *(("w7 " + row[0],) for _ in range(1, views_in(spec)) for row in rows)]
    return Subject(built(folder, spec, dropout=dropout), read(folder, whole, spec), labels)


def fine_tuning(
    folder: Path,
    spec: Objective = OBJECTIVES["cross_entropy"],
    *,
    seed: int = 1,
    every: int = 4,
    pairs: bool = False,
    init: Parent | None = None,
    relative: tuple[int, int] = (0, 0),
    **changes: Any,
) -> tuple[Stage, Inputs]:
    """A supervised stage on 20 rows with a dev set of 30 and a test set of 25, and what it reads. Clozes are of single texts."""
    pairs = pairs and spec.name != "prompt"
    rows = {"train": texts(20, 1, pairs), "dev": texts(30, 2, pairs), "test": texts(25, 3, pairs)}
    sets = {name: (read(folder, found, spec), labels) for name, (found, labels) in rows.items()}
    data = Data(RowSet("train", "train"), 2, 64, RowSet("dev", "dev"), (RowSet("test", "test"),))
    start = init or Encoder(locate(str(folder)).encoder.digest, folder.name, *relative)
    stage = Stage(spec, data, optim(**changes), seed, start, Selection("accuracy", every), "fine-tune")
    return stage, Inputs(*sets["train"], {"dev": sets["dev"], "test": sets["test"]})


def post_training(
    folder: Path,
    spec: Objective = OBJECTIVES["mlm"],
    *,
    seed: int = 1,
    relative: tuple[int, int] = (0, 0),
    **changes: Any,
) -> tuple[Stage, Inputs]:
    """An unsupervised stage on 20 texts, and what it reads."""
    start = Encoder(locate(str(folder)).encoder.digest, folder.name, *relative)
    views = views_in(spec)
    data = Data(RowSet("texts", "texts"), max_length=64, views=views)
    rows = [row for view in range(views) for row in texts(20, 1 + 5 * view)[0]]
    stage = Stage(spec, data, optim(**changes), seed, start, None, "post")
    return stage, Inputs(read(folder, rows, spec))


class Killed(BaseException):
    """Ends the process of a stage, as far as the stage can tell."""


def record_of(stage: Stage, inputs: Inputs, place: WorkerSetup, report: Any = id, **options: Any) -> Record:
    """What a stage becomes there; its weights are kept. `report`: called with each entry of its history."""
    evaluate = loop._TrainingRun.evaluate

    def reported(run: Any, step: int) -> None:
        evaluate(run, step)
        report(run.result.history[-1])

    metrics = (stage.selection.metric,) if stage.selection else METRICS
    read = vocabulary(place.encoders[stage.encoder.digest][0])
    with patch.object(loop._TrainingRun, "evaluate", reported):
        return run_stage(stage, inputs, read, metrics, place, **{"keep_weights": True, **options})


def worker_setup(folder: Path, artifacts: Path) -> WorkerSetup:
    return WorkerSetup({locate(str(folder)).encoder.digest: (folder, None)}, Storage(str(artifacts)))
