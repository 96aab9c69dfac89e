"""What a tool author declares, and what comes of it."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

import lightagentd.tool
from lightagentd.tool import Args, Context, Effect, NeedsInput, Result, Tool, action, actions_of


class CountArgs(Args):
    upto: int = Field(ge=1, le=10, description="How far to count.")


class ChosenArgs(Args):
    effect: Effect = Effect.OBSERVE


class Counter(Tool):
    """Counts."""

    name = "counter"

    @action(effect=Effect.REACH, taints=True, timeout_s=7)
    async def up(self, ctx: Context, args: CountArgs) -> Result:
        """Count up.

        One number after the other.
        """
        return Result(output=" ".join(str(number) for number in range(1, args.upto + 1)))

    @action(effect=None)
    async def as_asked(self, ctx: Context, args: ChosenArgs) -> Result:
        """Do as the call says."""
        return Result(output=args.effect)

    async def not_an_action(self, ctx: Context, args: CountArgs) -> Result:
        return Result(output="")


def test_an_action_has_what_was_declared() -> None:
    found = {one.name: one for one in actions_of(Counter())}
    assert set(found) == {"up", "as_asked"}
    up = found["up"]
    assert (up.tool, up.function, up.effect, up.taints, up.timeout_s) == (
        "counter",
        "counter_up",
        Effect.REACH,
        True,
        7,
    )
    assert up.description == "Count up.\n\nOne number after the other."
    assert up.args_model is CountArgs
    assert found["as_asked"].effect is None


def test_the_schema_comes_from_the_arguments_and_refuses_unknown_names() -> None:
    schema = CountArgs.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["upto"]
    assert schema["properties"]["upto"]["description"] == "How far to count."
    with pytest.raises(ValidationError):
        CountArgs.model_validate({"upto": 1, "downto": 0})


async def test_a_method_is_bound_to_the_instance_that_was_asked() -> None:
    class Stateful(Tool):
        """Remembers."""

        name = "stateful"

        def __init__(self) -> None:
            self.calls = 0

        @action()
        async def call(self, ctx: Context, args: Args) -> Result:
            """Count the calls."""
            self.calls += 1
            return Result(output=str(self.calls))

    one, other = Stateful(), Stateful()
    (of_one,) = actions_of(one)
    (of_other,) = actions_of(other)
    context = None
    await of_one.method(context, Args())  # type: ignore[arg-type]  # the action does not look at it
    assert (await of_one.method(context, Args())).output == "2"  # type: ignore[arg-type]  # as above
    assert (await of_other.method(context, Args())).output == "1"  # type: ignore[arg-type]  # as above


def test_an_action_of_a_base_class_is_one_of_the_tool() -> None:
    class Derived(Counter):
        """Counts too."""

        name = "derived"

    assert {one.function for one in actions_of(Derived())} == {"derived_up", "derived_as_asked"}


def test_a_result_is_text_and_data() -> None:
    assert Result(output="x") == Result(output="x", metadata={})
    assert Result(output="x").metadata is not Result(output="x").metadata


async def test_a_tool_without_a_close_has_nothing_to_close() -> None:
    await Counter().close()


def test_everything_that_a_tool_author_needs_is_exported() -> None:
    assert all(hasattr(lightagentd.tool, name) for name in lightagentd.tool.__all__)
    assert {"Args", "Context", "Effect", "Result", "Tool", "ToolError", "action"} <= set(
        lightagentd.tool.__all__
    )


@pytest.mark.parametrize("resume", ["gone", "plain", "few", "went_on"])
async def test_what_goes_on_with_an_answer_is_a_method_of_the_tool(resume: str) -> None:
    class Asker(Tool):
        """Asks."""

        name = "asker"

        @action(resume=resume)
        async def ask(self, ctx: Context, args: Args) -> Result:
            """Ask."""
            raise NeedsInput("Go on?", state={"at": 1})

        async def went_on(self, ctx: Context, state: object, answer: str) -> Result:
            return Result(output=f"{state} {answer}")

        async def few(self, ctx: Context, answer: str) -> Result:
            return Result(output=answer)

        def plain(self, ctx: Context, state: object, answer: str) -> Result:
            return Result(output=answer)

    if resume != "went_on":
        with pytest.raises(
            TypeError, match=rf"asker\.ask needs an async method {resume}\(self, ctx, state, a"
        ):
            list(actions_of(Asker()))
        return
    (found,) = actions_of(Asker())
    assert found.resume is not None
    assert (await found.resume(None, 1, "yes")).output == "1 yes"  # type: ignore[arg-type]  # as above
