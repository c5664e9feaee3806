"""Suggestions: a name that is spelled nearly like a known one is answered with it, any other name with the list alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from harness.cli.terminal import say
from harness.commands.recorded import command
from harness.encoders.families import FAMILIES
from harness.errors import UserError, hint, masked, unknown
from harness.methods import METHODS
from harness.planning.request import Request
from harness.tasks.metrics import METRICS
from harness.tasks.task import TASKS

KNOWN = (*FAMILIES, *METHODS, *TASKS, *METRICS)
FIELDS = ("optim.lr", "fine_tune.lr", "fine_tune.batch_size", "cmlm.alpha", "max_length", "contrast")


def meant_by(name: str, known: Iterable[str]) -> str:
    return hint(name, known).removeprefix(" Did you mean '").removesuffix("'?")


@pytest.mark.parametrize("name", [name for name in KNOWN if len(name) > 3])
def test_one_slip_in_a_name_is_near_it(name: str) -> None:
    for i in range(len(name) - 1):
        for slip in (
            name[:i] + name[i + 1 :],
            name[:i] + name[i] + name[i:],
            name[:i] + "#" + name[i + 1 :],
            name[:i] + name[i + 1] + name[i] + name[i + 2 :],
        ):
            assert meant_by(slip, [name]) == name
            assert meant_by(slip.upper(), [name]) == name


MEANT = {
    "roberat": "roberta", "ccola": "cola", "acuracy": "accuracy", "f1-macro": "f1_macro", "sst-2": "sst2", "cont": "contrast",
    "max_len": "max_length", "fine_tune.lrr": "fine_tune.lr", "fine_tune.batch": "fine_tune.batch_size", "cml.alhpa": "cmlm.alpha",
}  # fmt: skip
NONE = "longformer funnel canine t5 gpt2 perplexity imdb dpo q - # 30".split()  # noqa: SIM905


def test_the_nearest_name_is_meant_and_another_is_near_to_none() -> None:
    known = (*KNOWN, *FIELDS, "f1_macro", "20", "300")
    assert {name: meant_by(name, known) for name in MEANT} == MEANT
    assert {name: hint(name, known) for name in (*NONE, "")} == dict.fromkeys((*NONE, ""), "")
    assert str(unknown("name", "dpo", KNOWN)) == f"unknown name 'dpo'. Known: {', '.join(sorted({*KNOWN}))}."


@pytest.mark.parametrize(
    ("url", "shown"),
    {
        "ray://me:hush@host:10001": "ray://***@host:10001",
        "https://hush@host/x": "https://***@host/x",
        "https:/me:hu/sh@host/x": "https:/***@host/x",  # as a path spells it
        "postgresql+psycopg://me:hu@sh@host/x": "postgresql+psycopg://me:***@host/x",
        "postgresql://me@host/x?password=hush&y=1": "postgresql://me@host/x?password=***&y=1",
        "s3://me:hu/sh@bucket/x": "s3://***@bucket/x",
        "https://host/x?X-Amz-Signature=hush": "https://host/x?X-Amz-Signature=***",
    }.items(),
)
def test_no_password_of_a_url_is_shown_and_nothing_else_is_hidden(
    url: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an error, a sentence and a command line; shown again it stays."""
    others = "file:///home/a@b/x http://host:8080/x@v1 hub:owner/name:main@refs/pr/1 wmt19:de@T=0.7 a@b.c /home/a@b:c/x"
    said = f"Names {shown} and {others}."
    say(f"Names {url} and {others}.")
    assert (str(UserError(f"Names {url} and {others}.")), capsys.readouterr().err) == (said, f"{said}\n")
    assert shown in command(Request("few_shot", corpus=url), store=url).replace("'", "")
    assert masked(shown) == shown
