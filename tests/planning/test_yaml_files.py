"""Errors in YAML files name file, line, key and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import model_validator

from harness.errors import UserError
from harness.wording import two_digits, value_text
from harness.yaml_files import MisplacedError, Strict, load_yaml, parse_value, parse_yaml


class Row(Strict):
    name: str
    set: dict[str, bool | int | float | str] = {}  # noqa: RUF012


class Inner(Strict):
    sizes: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _no_seven(self) -> Inner:
        if 7 in self.sizes:
            raise MisplacedError(["sizes", self.sizes.index(7)], "7 is not allowed; take 8")
        return self


class Outer(Strict):
    name: str
    lr: float = 1.0
    rows: tuple[Row, ...] = ()
    presets: dict[str, Inner] = {}  # noqa: RUF012


def error_of(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_yaml(text, Outer, "x.yaml")
    return str(caught.value)


def test_scientific_notation_is_a_float_and_words_stay_words() -> None:
    found = parse_yaml(
        "name: no\nlr: 1e-5\nrows:\n- name: a\n  set: {alpha: 1e-3, k: 2, mlm: false, c: simclr}\n", Outer, "x"
    )
    assert found.lr == 1e-5
    assert found.name == "no"
    values = found.rows[0].set
    assert values == {"alpha": 1e-3, "k": 2, "mlm": False, "c": "simclr"}
    assert [type(v) for v in values.values()] == [float, int, bool, str]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: a\nlrr: 1\n", ["x.yaml, line 2, key lrr:", "Did you mean 'lr'?"]),
        ("name: a\nrows:\n- name: b\n  sett: {}\n", ["line 4, key rows.0.sett:", "Did you mean 'set'?", "name, set"]),
        ("name: a\npresets:\n  quick:\n    sizes: [1,\n      b]\n", ["line 5, key presets.quick.sizes.1:", "'b'"]),
        ("name: a\npresets:\n  quick:\n    sizes: [1, 7]\n", ["line 4, key presets.quick.sizes.1:", "take 8"]),
        ("lr: 3\n", ["key name:", "missing"]),
        ("name: a\nname: b\n", ["line 2", 'duplicate key "name"']),
        ("name: [a\nb: c\n", ["line 2", "not valid YAML"]),
        ("# only a comment\n", ["x.yaml: the file is empty", "name"]),
        ("- 1\n", ["mapping"]),
        ("name: a\nlr: 2021-13-45\n", ["not valid YAML"]),
        *(
            (f"name: {text}\n", ["x.yaml: ", "write plain keys"])
            for text in ("&x {a: *x}", "{[b]: 1}", '"a\\0"', '"\\ud800"')
        ),
        ("name: !!set {? [a]}\n", ["x.yaml"]),
    ],
)
def test_errors_name_the_place_and_the_mend(text: str, parts: list[str]) -> None:
    message = error_of(text)
    for part in parts:
        assert part in message
    assert "\n" not in message


def test_only_the_first_few_errors_in_the_order_of_the_file() -> None:
    lines = error_of("a: 1\nb: 1\nc: 1\nd: 1\ne: 1\nname: x\n").split("\n")
    assert [line.split(", key ")[0] for line in lines[:3]] == [f"x.yaml, line {n}" for n in (1, 2, 3)]
    assert lines[3] == "x.yaml: and 2 more."


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_yaml(tmp_path / "none.yaml", Outer)
    with pytest.raises(UserError, match="cannot be read"):
        load_yaml(tmp_path, Outer)
    bad = tmp_path / "latin.yaml"
    bad.write_bytes(b"name: a\nlr: \xe9\n")
    with pytest.raises(UserError, match="line 2: the file is not UTF-8"):
        load_yaml(bad, Outer)
    bad.write_bytes(b"\xef\xbb\xbfname: a\r\nlr: 2\r\n")
    assert load_yaml(bad, Outer).lr == 2


@pytest.mark.parametrize("name", ["x" * 300 + ".yaml", "~nobody_x/a.yaml", "/dev/null/a.yaml"])
def test_a_path_that_cannot_be_looked_up(name: str) -> None:
    with pytest.raises(UserError):
        load_yaml(Path(name), Outer)


def test_values_from_the_command_line() -> None:
    read = {
        "{[a]: 1}": "{[a]: 1}",
        "1e-5": 1e-5,
        "true": True,
        "{20: 3}": {20: 3},
        "simclr": "simclr",
        "a: b: c": "a: b: c",
    }
    assert {text: parse_value(text) for text in read} == read


@pytest.mark.parametrize("value", [1234567, 10**15 + 1, 0.000123456789, 1 / 3, 1e-05, 0.1, 100, 100.0, 1e6])
def test_a_printed_setting_that_is_set_again_is_the_same(value: float) -> None:
    assert parse_value(value_text(value)) == value
    assert value_text({20: value}) == f"{value_text(value)} at 20"
    assert len(value_text(value)) <= len(repr(value)), "in the fewest digits"


@pytest.mark.parametrize("value", [0, 1e-9, 0.004, 9.94, 9.96, 99.6, 100, 1234.5, 1e7])
def test_a_share_and_hours_have_no_exponent(value: float) -> None:
    shown = two_digits(value)
    assert "e" not in shown.removeprefix("less")
    assert float(shown.removeprefix("less than ").replace(",", "")) == pytest.approx(value, rel=0.06, abs=0.001)
