"""The list of a request's fields is the whole of a request, of the Python API's arguments and of a point's target."""

from __future__ import annotations

import dataclasses

from harness.api.arguments import Fields
from harness.planning.fields import BY_NAME
from harness.planning.point import PointTarget
from harness.planning.request import FIELDS, Request

OF_THEIR_OWN = {"table", "overrides", "studies", "origins", "flags"}
"""Fields of a request that are no flag of a plain value."""


def test_the_list_is_the_request() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Request) if field.name not in OF_THEIR_OWN}
    assert defaults == {name: field.default for name, field in BY_NAME.items()}


def test_arguments_and_targets_follow_the_list() -> None:
    assert set(Fields.__annotations__) == set(BY_NAME)
    assert set(PointTarget.model_fields) == {*FIELDS, "table", "row", "set"} - {"methods", "reference"}
