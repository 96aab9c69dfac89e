"""The circuit breaker of an endpoint, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from lightagentd.errors import (
    ModelCertificate,
    ModelCircuitOpen,
    ModelCutOff,
    ModelError,
    ModelGarbled,
    ModelKeyRefused,
    ModelOverloaded,
    ModelRateLimited,
    ModelRejected,
    ModelTimedOut,
    ModelUnreachable,
)
from lightagentd.llm.circuit import (
    FAILURES,
    MOST_OPEN_S,
    OPEN_S,
    WITHIN_S,
    Circuit,
    Circuits,
    CircuitState,
    endpoint_of_url,
    is_down,
)
from lightagentd.llm.protocol import Finish, Part, Request


@dataclass
class Fixture:
    """A circuit, what it told, and its time."""

    now_s: float = 1000.0
    told: list[CircuitState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.circuit = Circuit("http://h:1", self.told.append, lambda: self.now_s)

    def attempt(self, turn: str, err: ModelError | None = None, *, model: str = "p/x") -> bool:
        """One attempt; False when it was turned away."""
        try:
            self.circuit.enter(model, turn)
        except ModelCircuitOpen:
            return False
        if err is None:
            self.circuit.answered(turn)
        else:
            self.circuit.failed(err, model, turn)
        self.circuit.leave(turn)
        return True

    def break_down(self) -> None:
        for number in range(FAILURES):
            assert self.attempt(f"t{number}", ModelUnreachable("away"))


def test_it_opens_after_failures_in_a_row_and_says_until_when_and_why() -> None:
    test = Fixture()
    for number in range(FAILURES - 1):
        test.attempt(f"t{number}", ModelTimedOut("words of the endpoint"))
    assert test.attempt("t8", ModelTimedOut("words of the endpoint"))
    assert [told.state for told in test.told] == ["open"]
    with pytest.raises(ModelCircuitOpen) as refused:
        test.circuit.enter("p/x", "t9")
    assert "p/x" in refused.value.message
    assert "30 s" in refused.value.message
    assert "did not answer in time" in refused.value.message
    assert "words of the endpoint" not in refused.value.message, "they may be about another user's prompt"


def test_a_success_in_between_begins_the_count_anew() -> None:
    test = Fixture()
    for _ in range(5):
        for number in range(FAILURES - 1):
            test.attempt(f"t{number}", ModelUnreachable("away"))
        test.attempt("t9")
    assert test.told == []


def test_failures_that_lie_far_apart_do_not_open_it() -> None:
    test = Fixture()
    for number in range(4 * FAILURES):
        test.attempt(f"t{number}", ModelUnreachable("away"))
        test.now_s += WITHIN_S / (FAILURES - 1) + 1
    assert test.told == []


def test_the_retries_of_one_turn_do_not_open_it() -> None:
    test = Fixture()
    for _ in range(10 * FAILURES):
        assert test.attempt("lonely", ModelUnreachable("away"))
    assert test.told == []
    assert test.attempt("lonely too", ModelUnreachable("away"))
    assert [told.state for told in test.told] == ["open"]


@pytest.mark.parametrize("err", [ModelRejected("no"), ModelKeyRefused("no")])
def test_a_refusal_says_that_the_endpoint_is_up(err: ModelError) -> None:
    test = Fixture()
    for number in range(10 * FAILURES):
        assert test.attempt(f"t{number}", err if number % FAILURES == 0 else ModelUnreachable("away"))
    assert test.told == []


@pytest.mark.parametrize("err", [ModelRateLimited("x"), ModelCertificate("x"), ModelGarbled("x")])
def test_what_says_nothing_about_being_down_does_not_count(err: ModelError) -> None:
    test = Fixture()
    for number in range(10 * FAILURES):
        assert test.attempt(f"t{number}", err)
    assert test.told == []


def test_exactly_one_call_tries_it_when_its_time_is_over() -> None:
    test = Fixture()
    test.break_down()
    assert not test.attempt("a")
    test.now_s += OPEN_S
    test.circuit.enter("p/x", "a")
    assert not test.attempt("b")
    assert test.circuit.state.state == "probing"
    test.circuit.answered("a")
    test.circuit.leave("a")
    assert [told.state for told in test.told] == ["open", "closed"]
    assert test.attempt("b")


def test_a_probe_that_is_cancelled_makes_room_for_the_next() -> None:
    test = Fixture()
    test.break_down()
    test.now_s += OPEN_S
    test.circuit.enter("p/x", "a")
    test.circuit.leave("a")
    assert test.attempt("b")


def test_it_stays_open_for_longer_when_many_ask_but_never_very_long() -> None:
    test = Fixture()
    test.break_down()
    opened = []
    for _ in range(8):
        opened.append(test.circuit.state.open_s)
        assert not any(test.attempt(f"t{number}") for number in range(20))
        test.now_s += test.circuit.state.open_s
        assert test.attempt("probe", ModelUnreachable("away"))
    assert opened == [OPEN_S, 60.0, 120.0, 240.0, *[MOST_OPEN_S] * 4]
    test.now_s += MOST_OPEN_S
    assert test.attempt("probe")
    test.break_down()
    assert test.circuit.state.open_s == OPEN_S, "a success begins anew"


def test_a_lonely_user_never_waits_for_longer_than_the_first_time() -> None:
    test = Fixture()
    test.break_down()
    for number in range(20):
        assert not test.attempt(f"impatient {number}")
        assert test.circuit.state.open_s <= OPEN_S
        test.now_s += test.circuit.state.open_s
        assert test.attempt(f"again {number}", ModelUnreachable("away"))


def test_attempts_that_were_on_their_way_when_it_opened_do_not_prolong_it() -> None:
    test = Fixture()
    for number in range(100):
        test.circuit.enter("p/x", f"t{number}")
    for number in range(100):
        test.circuit.failed(ModelUnreachable("away"), "p/x", f"t{number}")
    assert len(test.told) == 1
    test.now_s += OPEN_S
    assert test.attempt("probe")
    assert [told.state for told in test.told] == ["open", "closed"]


def test_a_model_that_fails_inside_does_not_lock_out_the_others_of_its_endpoint() -> None:
    test = Fixture()
    for number in range(FAILURES):
        assert test.attempt(f"t{number}", ModelOverloaded("no memory"), model=f"p/x{number % 2}")
    assert not test.attempt("a", model="p/x0")
    assert test.circuit.open_s("p/x0") > 0
    assert test.circuit.open_s("p/y") == 0
    assert "only p/x0, p/x1" in test.circuit.state.why
    assert test.circuit.state.turns_away("p/x1")
    assert not test.circuit.state.turns_away("p/y")
    assert test.attempt("b", ModelOverloaded("busy"), model="p/y"), "another model has its own trouble"
    assert test.attempt("c", model="p/y")
    assert [told.state for told in test.told] == ["open", "closed"]


def test_an_endpoint_that_goes_away_is_left_alone_by_all_its_models() -> None:
    test = Fixture()
    for number in range(FAILURES):
        test.attempt(f"t{number}", ModelOverloaded("no memory"))
    assert test.attempt("a", ModelUnreachable("away"), model="p/y")
    assert not test.attempt("b", model="p/y")
    test.now_s += OPEN_S
    assert test.attempt("probe", ModelOverloaded("back, but not well"))
    assert not test.attempt("c", model="p/x")
    assert test.attempt("d", model="p/y")


def test_failures_of_both_kinds_are_of_the_whole_endpoint() -> None:
    test = Fixture()
    for number in range(FAILURES):
        test.attempt(f"t{number}", ModelOverloaded("busy") if number else ModelTimedOut("silent"))
    assert not test.attempt("a", model="p/y")


def test_an_answer_closes_it_whoever_got_it() -> None:
    test = Fixture()
    test.circuit.enter("p/x", "slow")
    test.break_down()
    test.circuit.answered("slow")
    assert [told.state for told in test.told] == ["open", "closed"]


@pytest.mark.parametrize(
    ("err", "down"),
    [
        (ModelUnreachable("x"), True),
        (ModelTimedOut("x"), True),
        (ModelCutOff("x"), True),
        (ModelOverloaded("x"), True),
        (ModelRateLimited("x"), True),
        (ModelCircuitOpen("x"), True),
        (ModelCertificate("x"), False),
        (ModelGarbled("x"), False),
        (ModelRejected("x"), False),
        (ModelError("x"), False),
        (OSError("x"), False),
    ],
)
def test_what_is_down(err: Exception, down: bool) -> None:
    assert is_down(err) is down


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://api.example.org/v1/chat/completions", "https://api.example.org:443"),
        ("http://API.example.org:80/x", "http://api.example.org:80"),
        ("http://api.example.org/y", "http://api.example.org:80"),
        ("https://user:secret@h:8443/", "https://h:8443"),
        ("http://[::1]:11434/v1", "http://[::1]:11434"),
        ("", ""),
        ("http://h:port/", ""),
    ],
)
def test_an_endpoint_is_scheme_host_and_port(url: str, endpoint: str) -> None:
    assert endpoint_of_url(url) == endpoint


class Client:
    name, context_tokens, window_known = "p/x", 0, True

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    async def stream(self, request: Request) -> AsyncGenerator[Part, None]:
        yield Finish(reason=f"never asked for {request.system}")

    async def close(self) -> None: ...


def test_clients_of_one_endpoint_share_a_circuit_and_those_without_have_none() -> None:
    circuits = Circuits()
    assert circuits.of(Client("")) is None
    one, same, other = (circuits.of(Client(name)) for name in ("http://a:1", "http://a:1", "http://b:1"))
    assert one is same
    assert one is not other
    assert [state.endpoint for state in circuits.states()] == ["http://a:1", "http://b:1"]
    assert circuits.problems() == []
    assert one is not None
    for number in range(FAILURES):
        one.failed(ModelUnreachable("away"), "p/x", f"t{number}")
    [problem] = circuits.problems()
    assert problem.startswith("The model endpoint http://a:1 is left alone for 30 s more: it failed 5 times")
