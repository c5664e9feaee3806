"""What a table says of training: the recipe of each phase, the corpus of pre-training, the MLM head, settings of the encoder."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable, Mapping
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from harness.errors import unknown
from harness.yaml_files import MisplacedError, Strict, describe_errors

PHASES = ("fine_tune", "post_train", "pre_train")
EXCLUSIVE = (("epochs", "steps"), ("warmup", "warmup_steps"))
"""Fields of a phase that say one thing in two ways: the one that is set later replaces the other."""

Value = bool | int | float | str
"""What a method's hyperparameter may be in YAML; the method validates it."""


def _scalar(value: object) -> object:
    if not isinstance(value, (bool, int, float, str)):
        shown = "nothing" if value is None else repr(value)
        raise ValueError(f"should be a number, a word, true or false, not {shown}")
    return value


Scalar = Annotated[Value, BeforeValidator(_scalar)]
"""A value; a wrong one gives one error, not one for each type of the union."""


def _not_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"should be a number, not {'true' if value else 'false'}")
    return value


Integer = Annotated[int, BeforeValidator(_not_bool)]
Real = Annotated[float, BeforeValidator(_not_bool)]
Number = Annotated[Real, Field(allow_inf_nan=False)]
Positive = Annotated[Real, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[Real, Field(ge=1e-12, le=1)]
"""A learning rate, or AdamW's eps: a smaller or larger one is a typing error."""
Share = Annotated[Real, Field(gt=0, le=1)]
Count = Annotated[Integer, Field(ge=1, le=10**9)]
Batch = Annotated[Integer, Field(ge=1, le=10**6)]
Few = Annotated[Integer, Field(ge=1, le=1000)]
Size = Annotated[Integer, Field(ge=0, le=10**9)]
Seed = Annotated[Integer, Field(ge=0, lt=2**32)]
Length = Annotated[Integer, Field(ge=8, le=8192)]
"""Tokens of a sequence, at most; the encoder's positions are a limit too."""
Passes = Annotated[Real, Field(gt=0, le=10**5)]
BY_SIZE = Discriminator(lambda value: "sizes" if isinstance(value, Mapping) else "number")
Epochs = Annotated[Annotated[Passes, Tag("number")] | Annotated[dict[Size, Passes], Tag("sizes")], BY_SIZE]
Steps = Annotated[Annotated[Count, Tag("number")] | Annotated[dict[Size, Count], Tag("sizes")], BY_SIZE]
Origin = Annotated[str, Field(pattern=r"^([PRC]( .+)?|D .+, .+)$")]
"""P (the paper), R (read in released code) or C (chosen here, where the paper is silent), then a section or a reason; D (departs
from the paper), then the paper's value, a comma and a section."""


class Phase(Strict):
    """One training phase's recipe. Unset fields are taken from the level below: table, then `specs.Optim`.

    `lr`: peak learning rate. `batch_size`: rows per update. `epochs` or `steps` (updates): a number, or one by size. `min_steps`: at least so
    many updates, where epochs are fewer. `warmup`: fraction of the steps; `warmup_steps`: in updates, at most all. `decay_biases_and_norms`:
    weight decay moves them too. `clip`: global gradient norm, 0 for none. `dropout`: probability.
    """

    lr: Rate | None = None
    batch_size: Batch | None = None
    epochs: Epochs | None = None
    steps: Steps | None = None
    min_steps: Count | None = None
    schedule: Literal["linear", "constant"] | None = None
    warmup: Annotated[Number, Field(ge=0, le=1)] | None = None
    warmup_steps: Count | None = None
    weight_decay: Annotated[Number, Field(ge=0, le=10)] | None = None
    decay_biases_and_norms: bool | None = None
    clip: Annotated[Number, Field(ge=0, le=10**6)] | None = None
    beta1: Annotated[Number, Field(ge=0, lt=1)] | None = None
    beta2: Annotated[Number, Field(ge=0, lt=1)] | None = None
    eps: Rate | None = None
    dropout: Annotated[Number, Field(ge=0, lt=1)] | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Phase:
        for first, second in EXCLUSIVE:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise MisplacedError([second], f"{first} and {second} are both given; keep one")
        return self


def replaced(keys: Iterable[str]) -> set[str]:
    """The keys of a recipe ('fine_tune.steps') in whose place these stand: `steps` replaces `epochs`, and so on."""
    found = {*keys}
    for phase, _, name in (key.partition(".") for key in keys):
        found |= {f"{phase}.{other}" for pair in EXCLUSIVE if name in pair for other in pair}
        found |= {f"{phase}.min_steps"} if name == "steps" else set()
    return found


Values = Mapping[str, Any]
"""Settings by key, as `--set` takes them: 'fine_tune.lr', 'encoder.relative_buckets', 'cmlm.alpha'."""


def keyed(group: str, model: BaseModel | None) -> dict[str, Any]:
    """What a model says, by keys of a group; nothing where there is none."""
    return {f"{group}.{name}": value for name, value in model or () if value is not None}


class Recipe(Strict):
    """The phases' recipes: `pre_train` on a corpus, `post_train` on a task's own texts, `fine_tune` on its labels."""

    fine_tune: Phase = Phase()
    post_train: Phase = Phase()
    pre_train: Phase = Phase()

    @cached_property
    def values(self) -> dict[str, Any]:
        """What it says, by key, in the order of the fields."""
        return {key: value for phase in PHASES for key, value in keyed(phase, getattr(self, phase)).items()}


RECIPE_KEYS = [f"{phase}.{name}" for phase, name in itertools.product(PHASES, Phase.model_fields)]
_ORDER = {key: place for place, key in enumerate(RECIPE_KEYS)}


def patched(values: Values, *patches: Values) -> dict[str, Any]:
    """The values with those of each patch over them, and without what these replace; of a recipe in the order of the fields."""
    found = dict(values)
    for patch in patches:
        gone = replaced(patch) - patch.keys()
        found = {key: value for key, value in found.items() if key not in gone} | dict(patch)
    return dict(sorted(found.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER))))


def group_of(values: Values, group: str, names: Container[str] | None = None) -> dict[str, Any]:
    """Those of a group ('fine_tune', 'encoder', a method) by name, of some `names` alone."""
    pairs = [(key.removeprefix(f"{group}."), value) for key, value in values.items() if key.startswith(f"{group}.")]
    return {name: value for name, value in pairs if names is None or name in names}


@cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    annotation: Any = Annotated[model.model_fields[name].annotation, model.model_fields[name]]
    return TypeAdapter(annotation)


def read_value(model: type[BaseModel], name: str, value: Any) -> Any:
    """A value as a field of a model reads it: 1 as 1.0 for a number. Raises ValueError with a sentence for a wrong one.

    Rules on several fields of the model are left out: the others may be changed too.
    """
    if name not in model.model_fields:
        raise ValueError(str(unknown("key", name, model.model_fields)).removesuffix("."))
    try:
        read = _adapter(model, name).validate_python(value)
    except ValidationError as error:
        raise ValueError(describe_errors(error, "").split("\n")[0].removeprefix(": ").removesuffix(".")) from None
    if isinstance(value, bool) is not isinstance(read, bool):
        raise ValueError(
            f"should be {'a number' if isinstance(value, bool) else 'true or false'}, not {str(value).lower()}"
        )
    return read


class TaskRecipe(Recipe):
    """What the recipe is for some tasks, over that of all."""

    tasks: tuple[str, ...] = Field(min_length=1)


LAST = "last"
EPOCHS_APART = re.compile(r"(\d*\.?\d+) epochs?")


def _every(value: object) -> object:
    if isinstance(value, str) and (value == LAST or EPOCHS_APART.fullmatch(value)):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9:
        return value
    raise ValueError(f"should be a number of updates, 'last' or '0.5 epochs', not {value!r}")


Every = Annotated[int | str, BeforeValidator(_every)]
"""When dev is evaluated: every so many updates and at the end, after the last update alone, or so many epochs apart."""


def updates_between(every: int | str, per_epoch: int) -> int:
    """Updates between two evaluations, of which an epoch has `per_epoch`; larger than any stage where the last alone counts."""
    if isinstance(every, int):
        return every
    apart = EPOCHS_APART.fullmatch(every)
    return max(1, math.ceil(float(apart[1]) * per_epoch)) if apart else 10**9


class PreTrain(Strict):
    """What rows with a `pre_train` are pre-trained on, one stage for all replicates: a corpus by name or path, the `fraction` of its
    texts, packed blocks of `max_length` tokens or a sequence a text, and the seed. `save_at`: updates after which its weights are stored, besides
    those that rows start from; it changes no number and no key."""

    corpus: str
    fraction: Share = 1.0
    blocks: Literal["packed", "text"] = "packed"
    max_length: Length = 128
    seed: Seed = 0
    save_at: tuple[Count, ...] = ()


class MlmHead(Strict):
    """The MLM stage for encoders without a usable MLM head. `steps` in updates: 0 for none, unset for the encoder's own
    number; `frozen`: the head alone is trained; `shared`: every row with post-training starts from it, one without an MLM term too."""

    steps: Size | None = None
    frozen: bool = False
    shared: bool = False


class Augment(Strict):
    """Back-translations as further labelled rows: `copies` of each row of a training set, with its label.

    `temperature`: the table's translator is sampled at it, `copies` times a text; left out: a copy by each of its pivots.
    """

    copies: Annotated[Integer, Field(ge=1, le=20)]
    temperature: Annotated[Real, Field(ge=0.01, le=10)] | None = None


class EncoderSettings(Strict):
    """Settings of the encoder for all rows of a table. A key that is left out keeps the encoder's own value.

    `relative_buckets`: of T5's relative positions, beside the encoder's own positions and zero at first; 0: none.
    `relative_distance`: from which all distances share a bucket.
    """

    relative_buckets: Annotated[Integer, Field(ge=0, le=10**4)] | None = None
    relative_distance: Annotated[Integer, Field(ge=1, le=10**4)] | None = None


def fraction_of(updates: int, steps: int) -> float:
    """The share of `steps` that the loop reads as `updates`, at most all: it rounds up, so an error upwards would add one."""
    share = min(1.0, updates / steps)
    return share if math.ceil(share * steps) <= updates else math.nextafter(share, 0)
