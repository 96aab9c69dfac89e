"""A short run of the fuzzer with a fixed seed, and properties of what reads stored bytes; the long one is
`python -m tests.fuzz`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.agents.sessions import imports
from lightagentd.errors import HistoryDamaged, ImportInvalid
from lightagentd.events.model import GENESIS, NewEvent, decode, encode
from lightagentd.events.store import states
from lightagentd.redaction import Redactor
from tests.fuzz import samples
from tests.fuzz.running import run


@pytest.fixture
def only_declared_events() -> None:
    """In place of the check in tests/conftest.py: the daemons here start from stores of made-up events."""


INPUTS = {
    "session-import": 400,
    "decoding": 1000,
    "wire": 1000,
    "reading": 15,
    "history-import": 60,
    "start": 5,
    "socket": 60,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("target", INPUTS)
def test_broken_input_is_read_or_refused(target: str) -> None:
    _, failure = run(target, "suite", inputs=INPUTS[target])
    assert failure is None, f"{failure.trace}\ninput {failure.number} of the seed {failure.seed}"


@settings(derandomize=True, database=None, deadline=None)
@given(data=st.dictionaries(st.text(), JSON, max_size=5))
def test_what_is_encoded_is_decoded_as_it_was_seen(data: dict[str, Any]) -> None:
    new = NewEvent(topic="agent.message", type="message", data=data)
    record, event = encode(new, 1, GENESIS, Redactor())
    assert decode(record) == event


@settings(derandomize=True, database=None, deadline=None)
@given(record=st.binary(max_size=300))
def test_bytes_of_any_kind_are_an_event_or_a_value_error(record: bytes) -> None:
    try:
        decode(record)
    except ValueError:
        return


@settings(derandomize=True, database=None, deadline=None)
@given(key=st.binary(max_size=20), value=st.binary(max_size=100))
def test_stored_state_of_any_kind_is_an_entry_or_damage(key: bytes, value: bytes) -> None:
    try:
        states.entry("sessions", key, value)
    except HistoryDamaged as err:
        assert "sessions" in err.message  # noqa: PT017 - either is right


@settings(derandomize=True, database=None, deadline=None)
@given(messages=st.lists(JSON | st.sampled_from(samples.MESSAGES), max_size=6))
def test_a_history_of_any_kind_is_imported_or_refused(messages: list[Any]) -> None:
    text = f"```json\n{json.dumps({'session_id': 'x', 'history': messages})}\n```\n"
    try:
        found = imports.read(text, max_bytes=1 << 20)
    except ImportInvalid as err:
        assert err.message.startswith("The import cannot be read: ")  # noqa: PT017 - either is right
        return
    assert found.said or not messages
