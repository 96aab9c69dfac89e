"""A root page of the store that was half written when the power went: the other one counts."""

from __future__ import annotations

from pathlib import Path

from lightagentd.events.corruption.examination import examine
from lightagentd.events.queries import StoredHistory
from tests.events.stored import note, opened

_PAGE, _TXN_AT, _ROOTS_AT, _ROOT_BYTES = 4096, 144, 40, 48


async def test_a_root_that_was_half_written_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        for number in range(5):
            await history.append(note(number))
    content = bytearray((folder / "data.mdb").read_bytes())

    def txn(page: int) -> int:
        return int.from_bytes(content[page * _PAGE + _TXN_AT : page * _PAGE + _TXN_AT + 8], "little")

    older = min((0, 1), key=txn)
    root = older * _PAGE + _ROOTS_AT + _ROOT_BYTES - 8
    content[root : root + 8] = (1 << 40).to_bytes(8, "little")  # and not the number yet
    (folder / "data.mdb").write_bytes(content)
    found = examine(folder, seconds=None)
    assert (found.problem, found.seq) == ("", 5)
    stored = StoredHistory(folder)
    try:
        assert [event.seq for event in stored.queries.range()] == [1, 2, 3, 4, 5]
    finally:
        stored.close()
