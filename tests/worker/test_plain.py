"""Arguments that the daemon checks itself: only where it comes to exactly what the worker comes to."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from lightagentd.tool import Args, Effect
from lightagentd.worker.loader import ToolFiles
from lightagentd.worker.plain import check_of, plain_fields
from tests.conftest import REPOSITORY


class Plain(Args):
    path: str = Field(min_length=1, max_length=5, description="A path.")
    mode: str = Field(default="", pattern="^([0-7]{3})?$")
    limit: int = Field(default=3, ge=1, le=9)
    wait_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    all: bool = False
    kind: Literal["", "a", 7] = ""
    names: list[Annotated[str, Field(max_length=2)]] | None = Field(default=None, min_length=1)


class Validated(Args):
    name: str

    @field_validator("name")
    @classmethod
    def _stripped(cls, name: str) -> str:
        return name.strip()


class Whole(Args):
    name: str

    @model_validator(mode="after")
    def _seen(self) -> Whole:
        return self


class Annotation(Args):
    name: Annotated[str, AfterValidator(str.strip)]


class Stripping(Args):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    name: str


class Open(Args):
    model_config = ConfigDict(extra="allow")
    name: str


class Aliased(Args):
    name: str = Field(alias="Name")


class LeftOut(Args):
    name: str = Field(exclude=True)


class Chosen(Args):
    effect: Effect = Effect.OBSERVE


class Made(Args):
    names: list[str] = Field(default_factory=list)


class Initialised(Args):
    name: str

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)


class Overridden(Args):
    name: str

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {"name": "another"}


class Later(Args):
    name: str

    def model_post_init(self, _: Any) -> None:
        self.name = "another"


CODE = (Validated, Whole, Annotation, Stripping, Open, Aliased, LeftOut, Chosen, Made, Initialised)


@pytest.mark.parametrize("model", [*CODE, Later, Overridden], ids=lambda model: model.__name__)
def test_arguments_with_code_or_a_form_of_their_own_are_left_to_the_worker(model: type[Args]) -> None:
    assert plain_fields(model) is None


WRONG: list[dict[str, Any]] = [
    *({"limit": 10}, {"limit": 1.5}, {"mode": "9"}, {"more": 1}, {"wait_s": 0}, {"wait_s": "nan"}),
    *({"kind": "b"}, {"all": 2}, {"names": []}, {"names": ["xyz"]}, {"names": "x"}),
    *({"path": ""}, {"path": "/too/long"}, {"path": 7}, {"path": None}, {"path": []}),
]


@pytest.mark.parametrize(
    "given",
    [
        {"path": "/"},
        {"path": "/", "mode": "644", "limit": "4", "wait_s": 1, "all": "yes", "kind": 7, "names": ["x"]},
        {"path": "/", "limit": 4.0, "wait_s": "2.5", "all": 1, "names": None},
        *({"path": "/", **wrong} for wrong in WRONG),
        {},
    ],
    ids=json.dumps,
)
def test_the_check_comes_to_what_the_worker_comes_to(given: dict[str, Any]) -> None:
    check = check_of(json.loads(json.dumps(plain_fields(Plain))))
    assert check is not None
    try:
        wanted = Plain.model_validate(given).model_dump(mode="json")
    except ValidationError:
        with pytest.raises(ValidationError):
            check(given)
    else:
        assert json.dumps(check(given)) == json.dumps(wanted)


@pytest.mark.parametrize(
    "described",
    [
        None,
        [],
        {"x": None},
        {"x": {"type": "is-instance", "cls": "str"}},
        {"x": {"type": "function-after", "schema": {"type": "str"}, "function": "f"}},
        {"x": {"type": "str", "strip_whitespace": True}},
        {"x": {"type": "str", "pattern": "("}},
        {"x": {"type": "str", "min_length": "long"}},
        {"x": {"type": "default", "schema": {"type": "str"}, "default": {}}},
        {"x": {"type": "literal", "expected": [["a"]]}},
        {"x": {"type": "default", "schema": {"type": "str"}, "default_factory": "dict"}},
    ],
    ids=str,
)
def test_a_worker_cannot_describe_anything_else(described: Any) -> None:
    assert check_of(described) is None


def test_most_actions_that_are_shipped_need_no_worker_for_their_check() -> None:
    tools = ToolFiles([REPOSITORY / "tools"])
    models = [action.args_model for loaded in tools.values() for action in loaded.actions.values()]
    assert sum(plain_fields(model) is not None for model in models) > len(models) / 2
