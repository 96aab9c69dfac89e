"""The tool file, with real files: reading any content, special files, looking and searching."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from lightagentd.errors import NotFound
from lightagentd.tool import Effect, InvalidArgument, ToolError

from .conftest import Call, CallContext, Load, is_root

pytestmark = pytest.mark.usefixtures("nothing_left")
not_as_root = pytest.mark.skipif(is_root(), reason="root passes the checks of modes")


class TestRead:
    async def test_lines_are_numbered(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("one\ntwo\r\nthree")
        result = await call("file", "read", path=f"{tmp_path}/f")
        assert result.output == "     1\tone\n     2\ttwo\n     3\tthree\n"
        assert result.metadata["total_lines"] == 3
        assert result.metadata["next_offset"] is None
        assert result.metadata["encoding"] == "utf-8"
        assert result.metadata["size_bytes"] == 14

    async def test_pages_follow_each_other_without_a_gap(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(1, 100_001)))
        first = await call("file", "read", path=f"{tmp_path}/f", offset=49_999, limit=2)
        assert first.output == " 49999\tline 49999\n 50000\tline 50000\n(more follows: offset=50001)\n"
        assert (first.metadata["next_offset"], first.metadata["total_lines"]) == (50_001, 100_000)
        last = await call("file", "read", path=f"{tmp_path}/f", offset=100_000, limit=2)
        assert last.output == "100000\tline 100000\n"
        assert last.metadata["next_offset"] is None

    async def test_every_offset_gives_its_own_line(self, call: Call, tmp_path: Path) -> None:
        lines = [f"{number}:" + "x" * (number * 7919 % 3000) for number in range(1, 400)]
        (tmp_path / "f").write_text("\n".join(lines))
        for number in range(1, 400, 7):
            result = await call("file", "read", path=f"{tmp_path}/f", offset=number, limit=1)
            assert result.output.split("\t")[1].startswith(f"{number}:")
            assert result.metadata["total_lines"] == 399

    async def test_an_offset_beyond_the_end_says_so(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("one\n")
        assert (await call("file", "read", path=f"{tmp_path}/f", offset=9)).output == "(there is no line 9)\n"
        (tmp_path / "f").write_text("")
        assert (await call("file", "read", path=f"{tmp_path}/f")).output == "(empty)\n"

    @pytest.mark.parametrize(
        ("data", "encoding"),
        [
            ("grüße\n".encode(), "utf-8"),
            ("grüße\n".encode("utf-8-sig"), "utf-8-sig"),
            ("grüße\n".encode("utf-16"), "utf-16"),
            (b"\xfe\xff" + "grüße\n".encode("utf-16-be"), "utf-16"),
            ("grüße\n".encode("utf-32"), "utf-32"),
            ("grüße\n".encode("iso-8859-1"), "iso-8859-1"),
        ],
    )
    async def test_the_encoding_is_found(
        self, call: Call, tmp_path: Path, data: bytes, encoding: str
    ) -> None:
        (tmp_path / "f").write_bytes(data)
        result = await call("file", "read", path=f"{tmp_path}/f")
        assert result.output.splitlines()[0] == "     1\tgrüße"
        assert result.metadata["encoding"] == encoding

    async def test_a_named_encoding_is_used_and_an_unknown_one_refused(
        self, call: Call, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_bytes("100 €\n".encode("cp1252"))
        result = await call("file", "read", path=f"{tmp_path}/f", encoding="cp1252")
        assert result.output == "     1\t100 €\n"
        for name in ("no-such", "hex", "base64"):
            with pytest.raises(InvalidArgument, match="no text encoding"):
                await call("file", "read", path=f"{tmp_path}/f", encoding=name)

    async def test_a_character_across_two_chunks_is_whole(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"a" * 65_535 + "€\nnext\n".encode())
        result = await call("file", "read", path=f"{tmp_path}/f", offset=2)
        assert result.output == "     2\tnext\n"
        assert result.metadata["encoding"] == "utf-8"

    async def test_a_binary_file_is_dumped(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"\x7fELF\0\1\2\3" + bytes(range(64, 90)))
        result = await call("file", "read", path=f"{tmp_path}/f", limit=2)
        assert result.output.startswith("00000000  7f 45 4c 46 00 01 02 03 40")
        assert ".ELF....@ABCDEFG\n00000010  " in result.output
        assert result.metadata["encoding"] == "binary"
        assert result.metadata["next_offset"] == 3

    async def test_a_huge_sparse_file_costs_neither_time_nor_memory(self, call: Call, tmp_path: Path) -> None:
        with (tmp_path / "f").open("wb") as file:
            file.truncate(1 << 40)
        result = await call("file", "read", path=f"{tmp_path}/f")
        assert len(result.output) < 100_000
        assert result.metadata["encoding"] == "binary"
        far = await call("file", "read", path=f"{tmp_path}/f", offset=1 << 30, limit=1)
        assert far.output.startswith(f"{((1 << 30) - 1) * 16:08x}  00 00")

    async def test_a_line_without_end_is_cut(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("x" * 1_000_000 + "\nnext\n")
        result = await call("file", "read", path=f"{tmp_path}/f")
        assert result.output == f"     1\t{'x' * 2000}…\n     2\tnext\n"
        assert result.metadata["cut_lines"] == 1

    async def test_a_page_is_bounded_in_bytes(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text(("y" * 1000 + "\n") * 3000)
        result = await call("file", "read", path=f"{tmp_path}/f", limit=3000)
        assert len(result.output) < 70_000
        again = await call(
            "file", "read", path=f"{tmp_path}/f", offset=result.metadata["next_offset"], limit=1
        )
        assert again.output.startswith(f"{result.metadata['lines'] + 1:>6}\t")

    async def test_a_kernel_file_of_size_0_is_read(self, call: Call) -> None:
        result = await call("file", "read", path="/proc/self/status")
        assert "Name:\t" in result.output
        assert result.metadata["size_bytes"] == 0

    async def test_special_files_are_refused_and_never_waited_for(self, call: Call, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "sock"))
            for path, kind in (
                (f"{tmp_path}/fifo", "fifo"),
                (f"{tmp_path}/sock", "socket"),
                ("/dev/zero", "character device"),
                (str(tmp_path), "folder"),
            ):
                with pytest.raises(InvalidArgument, match=f"is a {kind}"):
                    await call("file", "read", path=path)

    async def test_a_link_is_followed_and_a_dangling_one_is_not_found(
        self, call: Call, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_text("text\n")
        (tmp_path / "link").symlink_to("f")
        (tmp_path / "dangling").symlink_to("absent")
        assert (await call("file", "read", path=f"{tmp_path}/link")).output == "     1\ttext\n"
        with pytest.raises(NotFound, match="does not exist"):
            await call("file", "read", path=f"{tmp_path}/dangling")

    @pytest.mark.parametrize("path", ["etc/hostname", "~/x", "", "-n", "/etc/\0x"])
    async def test_only_absolute_paths_are_taken(self, call: Call, path: str) -> None:
        with pytest.raises(InvalidArgument, match="not an absolute path"):
            await call("file", "read", path=path)

    @not_as_root
    async def test_a_file_that_may_not_be_read_says_what_to_do(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("x")
        (tmp_path / "f").chmod(0)
        with pytest.raises(ToolError, match="Permission denied") as caught:
            await call("file", "read", path=f"{tmp_path}/f")
        assert "effect" in caught.value.suggestion

    async def test_a_name_that_begins_with_a_dash_is_a_name(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "--version").write_text("plain\n")
        assert (await call("file", "read", path=f"{tmp_path}/--version")).output == "     1\tplain\n"


class TestLook:
    async def test_list_shows_hidden_entries_links_and_odd_names(self, call: Call, tmp_path: Path) -> None:
        folder = tmp_path / "d"
        folder.mkdir()
        (folder / ".hidden").write_text("1234")
        (folder / "link").symlink_to("/absent")
        (folder / "new\nline").mkdir(mode=0o750)
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).write_text("")
        result = await call("file", "list", path=str(folder))
        lines = result.output.splitlines()
        assert len(lines) == 4
        assert lines[0].startswith("-rw")
        assert lines[0].endswith("Z .hidden")
        assert " 4 " in lines[0]
        assert lines[1].endswith("link -> /absent")
        assert lines[2].startswith("drwxr-x---")
        assert lines[2].endswith(r"new\nline")
        assert lines[3].endswith(r"\xff\xfe")

    async def test_list_is_bounded(self, call: Call, tmp_path: Path) -> None:
        for number in range(30):
            (tmp_path / f"{number:02}").touch()
        result = await call("file", "list", path=str(tmp_path), limit=10)
        assert result.output.splitlines()[-1] == "(20 more entries)"
        assert result.output.splitlines()[9].endswith(" 09")
        assert result.metadata["entries"] == 30

    async def test_list_of_a_file_is_an_error_that_says_so(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        with pytest.raises(ToolError, match="Not a directory"):
            await call("file", "list", path=f"{tmp_path}/f")

    async def test_stat_describes_the_link_and_not_its_target(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("absent")
        facts = (await call("file", "stat", path=f"{tmp_path}/link")).metadata
        assert (facts["kind"], facts["target"], facts["dangling"]) == ("link", "absent", True)
        assert facts["resolved"] == f"{tmp_path}/absent"

    async def test_stat_gives_mode_owner_and_size(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("12345")
        (tmp_path / "f").chmod(0o4640)
        result = await call("file", "stat", path=f"{tmp_path}/f")
        assert (result.metadata["mode"], result.metadata["size_bytes"]) == ("4640", 5)
        assert f"({os.getuid()})" in result.metadata["owner"]
        assert "permissions: -rwSr-----\n" in result.output

    async def test_stat_does_not_open_a_fifo(self, call: Call, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        assert (await call("file", "stat", path=f"{tmp_path}/fifo")).metadata["kind"] == "fifo"


class TestSearch:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        top = tmp_path / "tree"
        (top / "a" / "b").mkdir(parents=True)
        (top / "x.conf").write_text("Listen 80\n")
        (top / "a" / "y.conf").write_text("first\nlisten 443\nListen 8080\n")
        (top / "a" / "b" / ".z.conf").write_text("nothing\n")
        (top / "a" / "binary").write_bytes(b"Listen\0\n")
        (top / "loop").symlink_to(top)
        os.mkfifo(top / "fifo")
        return top

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.conf", ["x.conf"]),
            ("**/*.conf", ["x.conf", "a/y.conf", "a/b/.z.conf"]),
            ("a/**", ["a/", "a/b/", "a/binary", "a/y.conf", "a/b/.z.conf"]),
            ("*/*/*", ["a/b/.z.conf"]),
            ("**/b", ["a/b/"]),
            ("[xl]*", ["loop", "x.conf"]),
            ("nothing*", []),
        ],
    )
    async def test_glob_finds(self, call: Call, tree: Path, pattern: str, found: list[str]) -> None:
        result = await call("file", "glob", pattern=pattern, path=str(tree))
        expected = sorted(f"{tree}/{name}" for name in found) or ["(nothing found)"]
        assert sorted(result.output.splitlines()) == expected

    async def test_glob_takes_an_absolute_pattern(self, call: Call, tree: Path) -> None:
        result = await call("file", "glob", pattern=f"{tree}/*/y*")
        assert result.output == f"{tree}/a/y.conf\n"

    async def test_glob_stops_at_its_limit(self, call: Call, tree: Path) -> None:
        result = await call("file", "glob", pattern="**", path=str(tree), limit=2)
        assert "(stopped at the limit of 2; narrow the search)" in result.output
        assert result.metadata["matches"] == 2

    async def test_glob_refuses_to_climb(self, call: Call, tree: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"'\.\.'"):
            await call("file", "glob", pattern="../*", path=str(tree))

    async def test_grep_gives_path_line_and_text(self, call: Call, tree: Path) -> None:
        result = await call("file", "grep", pattern=r"^Listen \d+", path=str(tree))
        assert sorted(result.output.splitlines()) == [
            f"{tree}/a/y.conf:3:Listen 8080",
            f"{tree}/x.conf:1:Listen 80",
        ]
        assert result.metadata["binary"] == 1
        assert result.metadata["files"] == 4

    async def test_grep_filters_names_and_ignores_case(self, call: Call, tree: Path) -> None:
        result = await call("file", "grep", pattern="LISTEN", path=str(tree), glob="y*", ignore_case=True)
        assert result.output == f"{tree}/a/y.conf:2:listen 443\n{tree}/a/y.conf:3:Listen 8080\n"

    async def test_grep_searches_one_file_through_a_link(
        self, call: Call, tree: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "link").symlink_to(tree / "x.conf")
        result = await call("file", "grep", pattern="Listen", path=f"{tmp_path}/link")
        assert result.output == f"{tmp_path}/link:1:Listen 80\n"

    async def test_grep_of_a_fifo_is_refused(self, call: Call, tree: Path) -> None:
        with pytest.raises(InvalidArgument, match="is a fifo"):
            await call("file", "grep", pattern="x", path=f"{tree}/fifo")

    async def test_grep_is_bounded_and_cuts_long_lines(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_text(("x" * 5000 + "needle" + "y" * 5000 + "\n") * 50)
        result = await call("file", "grep", pattern="needle", path=f"{tmp_path}/f", limit=3)
        lines = result.output.splitlines()
        assert len(lines) == 4
        assert all("needle" in line and len(line) < 600 for line in lines[:3])
        assert result.metadata["stopped"] == "limit"

    async def test_a_catastrophic_expression_ends_with_what_was_found(
        self, call: Call, context: CallContext, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_text("aaaab\n" + "a" * 60 + "!\n")
        context.timeout_s = 4.0
        started = time.monotonic()
        result = await call("file", "grep", pattern=r"^(a+)+b?$|aab", path=f"{tmp_path}/f")
        assert time.monotonic() - started < 60
        assert result.output.startswith(f"{tmp_path}/f:1:aaaab\n(stopped when the time was up")
        assert result.metadata["stopped"] == "time"

    async def test_an_expression_that_is_none_is_explained(self, call: Call, tree: Path) -> None:
        with pytest.raises(InvalidArgument, match="not a regular expression: unterminated") as caught:
            await call("file", "grep", pattern="[a", path=str(tree))
        assert caught.value.field == "pattern"

    async def test_grep_takes_a_pattern_that_begins_with_a_dash(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"--option \xff\n")
        result = await call("file", "grep", pattern="--option", path=f"{tmp_path}/f")
        assert result.output == f"{tmp_path}/f:1:--option \N{REPLACEMENT CHARACTER}\n"


async def test_reads_side_by_side_do_not_disturb_each_other(call: Call, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).write_text(f"{number}\n")
    results = await asyncio.gather(*(call("file", "read", path=f"{tmp_path}/{n}") for n in range(10)))
    assert [result.output for result in results] == [f"     1\t{number}\n" for number in range(10)]


def test_effects_and_taints_are_as_designed(load: Load) -> None:
    actions = load("file").actions
    effects = {name: found.effect for name, found in actions.items()}
    changing = {name for name, effect in effects.items() if effect is Effect.CHANGE}
    assert changing == {"write", "edit", "delete", "undo"}
    assert {name for name, effect in effects.items() if effect is Effect.OBSERVE} == set(effects) - changing
    assert all(found.taints for found in actions.values())
