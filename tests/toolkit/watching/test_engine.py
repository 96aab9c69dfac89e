"""What the engine of a watch tells of, on the real file system with the real kernel."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightagentd.errors import InvalidArgument, NotFound, ToolError
from lightagentd.toolkit.watching import engine as engine_module
from lightagentd.toolkit.watching.changes import Change
from lightagentd.toolkit.watching.engine import Engine
from lightagentd.toolkit.watching.selection import OwnFolders, Selection
from tests.conftest import REPOSITORY
from tests.worker.running import PATIENCE_S

KINDS = ("create", "delete", "modify", "close_write", "attrib", "move")
Begin = Callable[..., "Run"]


class Run:
    """An engine that has begun, and what it told since."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.all: list[Change] = []

    def drain(self) -> list[Change]:
        """All that happened up to now: the kernel queues an event before the system call returns."""
        found: list[Change] = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            before = self.engine.events
            found += self.engine.step()
            waiting = self.engine._moved or self.engine._rescan_at is not None
            if self.engine.events == before and not waiting:
                self.all += found
                return found
            if waiting:
                select.select([self.engine.fd], [], [], 0.01)
        raise AssertionError(f"the engine does not come to rest: {found[-20:]}")

    def whole(self) -> bool:
        return self.engine.whole

    def told(self) -> list[tuple[str, str]]:
        """Kind and path below the root of what happened up to now."""
        return [(one.kind, os.path.relpath(one.path, self.engine.root)) for one in self.drain()]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[Run] = []

    def begun(
        root: Path | None = None,
        *,
        kinds: tuple[str, ...] = KINDS,
        recursive: bool = True,
        own: tuple[str, ...] = (),
        since_ns: int | None = None,
        folders_limit: int = 8192,
        entries_limit: int = 100_000,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        only: str = "",
        other_filesystems: bool = False,
    ) -> Run:
        selection = Selection(
            kinds=frozenset(kinds),
            recursive=recursive,
            include=include,
            exclude=exclude,
            only=only,
            other_filesystems=other_filesystems,
        )
        engine = Engine(
            str(root or tmp_path),
            selection,
            OwnFolders(own),
            folders_limit=folders_limit,
            entries_limit=entries_limit,
        )
        run = Run(engine)
        runs.append(run)
        run.all += engine.begin(since_ns=since_ns)
        return run

    yield begun
    for run in runs:
        run.engine.close()


Somebody = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def as_somebody() -> Somebody:
    """Be a user whom the modes of files hold, for the length of a block."""

    @contextlib.contextmanager
    def somebody() -> Iterator[None]:
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield
        finally:
            if root:
                os.seteuid(0)

    return somebody


class TestEvents:
    def test_a_file_is_made_written_changed_and_deleted(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(recursive=False)
        file = tmp_path / "file"
        file.write_text("x")
        assert run.told() == [("create", "file"), ("modify", "file"), ("close_write", "file")]
        file.chmod(0o600)
        assert run.told() == [("attrib", "file")]
        with file.open("a") as opened:
            opened.write("more")
        assert run.told() == [("modify", "file"), ("close_write", "file")]
        file.unlink()
        assert run.told() == [("delete", "file")]

    def test_only_the_kinds_that_were_asked_for_are_told(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("delete",))
        (tmp_path / "file").write_text("x")
        (tmp_path / "file").unlink()
        assert run.told() == [("delete", "file")]

    def test_reading_is_told_where_it_was_asked_for(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        run = begin(kinds=("open", "access", "close_nowrite"))
        (tmp_path / "file").read_text()
        assert run.told() == [("open", "file"), ("access", "file"), ("close_nowrite", "file")]

    def test_looking_into_folders_is_not_told(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        run = begin(kinds=("open", "access", "close_nowrite"))
        assert not list((tmp_path / "folder").iterdir())
        assert run.told() == []

    def test_a_rename_is_one_change_with_both_names(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "one").touch()
        (tmp_path / "folder").mkdir()
        run = begin()
        (tmp_path / "one").rename(tmp_path / "folder" / "two")
        found = run.drain()
        assert [(one.kind, one.path, one.from_path) for one in found] == [
            ("move", str(tmp_path / "folder" / "two"), str(tmp_path / "one"))
        ]

    def test_what_leaves_and_what_comes_in_is_told(self, begin: Begin, tmp_path: Path) -> None:
        watched, elsewhere = tmp_path / "watched", tmp_path / "elsewhere"
        watched.mkdir()
        elsewhere.mkdir()
        (watched / "out").touch()
        (elsewhere / "in").touch()
        run = begin(watched)
        (watched / "out").rename(elsewhere / "out")
        assert run.told() == [("moved_out", "out")]
        (elsewhere / "in").rename(watched / "in")
        assert run.told() == [("moved_in", "in")]

    def test_an_atomic_replacement_is_a_move(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "conf").write_text("old")
        run = begin(kinds=("create", "move"))
        (tmp_path / "conf.new").write_text("new")
        (tmp_path / "conf.new").replace(tmp_path / "conf")
        assert run.told() == [("create", "conf.new"), ("move", "conf")]

    def test_names_that_are_hard_to_show_arrive_unchanged(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("create",))
        names = [b"caf\xe9", "größe ☃".encode(), b"two\nlines", b"\x1b[31mred", b" ", b"-rf", b"a" * 255]
        for name in names:
            (tmp_path / os.fsdecode(name)).touch()
        assert [os.fsencode(one.path).rpartition(b"/")[2] for one in run.drain()] == names

    def test_a_folder_whose_name_is_not_utf_8_is_followed(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("create",))
        folder = tmp_path / os.fsdecode(b"\xff\xfe")
        folder.mkdir()
        run.drain()
        (folder / os.fsdecode(b"\xfd")).touch()
        assert [os.fsencode(one.path) for one in run.drain()] == [bytes(folder) + b"/\xfd"]
        assert run.whole()

    def test_one_file_is_watched_through_replacements(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("1")
        run = begin(only="a", recursive=False, kinds=("modify", "move", "delete", "create"))
        (tmp_path / "b").write_text("2")
        (tmp_path / "b").replace(tmp_path / "a")
        (tmp_path / "a").unlink()
        (tmp_path / "a").touch()
        (tmp_path / "c").touch()
        (tmp_path / "c").rename(tmp_path / "d")
        assert run.told() == [("move", "a"), ("delete", "a"), ("create", "a")]


class TestFolders:
    def test_a_tree_made_at_once_is_told_in_full(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("create",))
        made = []
        for number in range(20):
            folder = tmp_path / f"{number}" / "b" / "c"
            folder.mkdir(parents=True)
            for name in ("x", "y"):
                (folder / name).write_text("z")
                made.append(folder / name)
        told = run.told()
        for path in made:
            relative = path.relative_to(tmp_path)
            for part in (relative, *list(relative.parents)[:-1]):
                assert told.count(("create", str(part))) == 1, part

    def test_what_happens_in_a_new_folder_is_told(self, begin: Begin, tmp_path: Path) -> None:
        run = begin()
        (tmp_path / "a" / "b").mkdir(parents=True)
        run.drain()
        (tmp_path / "a" / "b" / "file").write_text("x")
        assert run.told() == [(kind, "a/b/file") for kind in ("create", "modify", "close_write")]

    def test_without_recursive_only_the_folder_itself(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "old").mkdir()
        run = begin(recursive=False, kinds=("create",))
        (tmp_path / "old" / "file").touch()
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "file").touch()
        assert run.told() == [("create", "new")]

    def test_a_renamed_folder_is_followed_under_its_new_name(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        run = begin(kinds=("create", "move"))
        (tmp_path / "a").rename(tmp_path / "z")
        (tmp_path / "z" / "b" / "file").touch()
        assert run.told() == [("move", "z"), ("create", "z/b/file")]

    def test_a_folder_that_is_renamed_twice_and_replaced(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        run = begin(kinds=("create", "move"))
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b").rename(tmp_path / "c")
        (tmp_path / "a").mkdir()
        run.drain()
        (tmp_path / "a" / "in-a").touch()
        (tmp_path / "c" / "in-c").touch()
        assert sorted(run.told()) == [("create", "a/in-a"), ("create", "c/in-c")]

    def test_a_new_folder_that_is_renamed_and_made_again_at_once(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("create", "move"))
        (tmp_path / "a").mkdir()
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").mkdir()
        run.drain()
        (tmp_path / "a" / "in-a").touch()
        (tmp_path / "b" / "in-b").touch()
        assert sorted(run.told()) == [("create", "a/in-a"), ("create", "b/in-b")]

    def test_a_folder_deleted_and_made_again_is_followed(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("create", "delete"))
        for _ in range(3):
            (tmp_path / "a").mkdir()
            (tmp_path / "a").rmdir()
        (tmp_path / "a").mkdir()
        run.drain()
        (tmp_path / "a" / "file").touch()
        assert run.told() == [("create", "a/file")]
        assert run.whole()

    def test_a_folder_that_is_moved_in_is_told_with_all_it_holds(self, begin: Begin, tmp_path: Path) -> None:
        watched = tmp_path / "watched"
        watched.mkdir()
        (tmp_path / "new" / "deep").mkdir(parents=True)
        (tmp_path / "new" / "deep" / "file").touch()
        run = begin(watched)
        (tmp_path / "new").rename(watched / "new")
        assert run.told() == [("moved_in", "new"), ("create", "new/deep"), ("create", "new/deep/file")]
        (watched / "new" / "deep" / "other").touch()
        assert ("create", "new/deep/other") in run.told()

    def test_a_folder_that_is_moved_out_is_left_alone(self, begin: Begin, tmp_path: Path) -> None:
        watched = tmp_path / "watched"
        (watched / "a" / "b").mkdir(parents=True)
        run = begin(watched)
        (watched / "a").rename(tmp_path / "a")
        assert run.told() == [("moved_out", "a")]
        (tmp_path / "a" / "b" / "file").touch()
        assert run.told() == []
        assert len(run.engine.tree.by_wd) == 1

    def test_links_are_not_followed(self, begin: Begin, tmp_path: Path) -> None:
        watched, elsewhere = tmp_path / "watched", tmp_path / "elsewhere"
        watched.mkdir()
        elsewhere.mkdir()
        (watched / "old").symlink_to(elsewhere)
        run = begin(watched)
        (watched / "new").symlink_to(elsewhere)
        (elsewhere / "file").touch()
        assert run.told() == [("create", "new")]
        assert len(run.engine.tree.by_wd) == 1

    def test_globs_include_and_exclude(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        run = begin(kinds=("create",), include=("*.conf",), exclude=("cache", "sub/*.bak.conf"))
        (tmp_path / "sub").mkdir()
        run.drain()
        for name in ("a.conf", "a.txt", "cache/b.conf", "sub/c.conf", "sub/c.bak.conf"):
            (tmp_path / name).touch()
        assert run.told() == [("create", "a.conf"), ("create", "sub/c.conf")]
        assert len(run.engine.tree.by_wd) == 2

    @pytest.mark.skipif(
        not Path("/dev/shm").is_mount(), reason="nothing is mounted below /dev on this machine"
    )
    def test_other_file_systems_only_when_asked_for(self, begin: Begin) -> None:
        shm = "/dev/shm"
        run = begin(Path("/dev"))
        assert shm in run.engine.tree.left_out
        assert shm not in {folder.path for folder in run.engine.tree.by_wd.values()}
        run = begin(Path("/dev"), other_filesystems=True)
        assert shm in {folder.path for folder in run.engine.tree.by_wd.values()}

    def test_own_folders_are_never_watched(self, begin: Begin, tmp_path: Path) -> None:
        own = tmp_path / "state"
        (own / "history").mkdir(parents=True)
        run = begin(own=(str(own),))
        (own / "history" / "data").write_text("x")
        (own / "file").write_text("x")
        own.chmod(0o700)
        assert run.told() == []
        assert run.engine.tree.left_out == {str(own)}
        assert run.whole()

    def test_own_folders_made_later_or_under_another_name(self, begin: Begin, tmp_path: Path) -> None:
        own = tmp_path / "state"
        run = begin(own=(str(own),))
        own.mkdir()
        (own / "file").touch()
        assert run.told() == []
        begun = begin(own=(str(own),))
        own.rename(tmp_path / "alias")
        (tmp_path / "alias" / "other").touch()
        assert begun.told() == [("move", "alias")]  # its inode is known, so it is not gone into
        assert len(begun.engine.tree.by_wd) == 1

    def test_scratch_folders_of_calls_are_not_told(self) -> None:
        own = OwnFolders([])
        assert own.holds("/tmp", "lightagent-call_0123456789abcdef-abcd1234")
        assert not own.holds("/tmp", "lightagent-call_0123456789abcdef")
        assert not own.holds("/home", "lightagent-call_0123456789abcdef-abcd1234")


class TestMissing:
    def test_a_folder_that_may_not_be_read_is_missing_until_it_may(
        self, begin: Begin, tmp_path_factory: pytest.TempPathFactory, as_somebody: Somebody
    ) -> None:
        root = tmp_path_factory.mktemp("open")
        for folder in (root, *root.parents):
            if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
                folder.chmod(0o755)
        (root / "closed" / "inner").mkdir(parents=True)
        (root / "closed").chmod(0o000)
        with as_somebody():
            run = begin(root, kinds=("create", "attrib"))
        assert run.engine.tree.not_watched == {str(root / "closed"): "permission denied"}
        assert not run.whole()
        (root / "closed").chmod(0o755)
        (root / "closed" / "inner").chmod(0o755)
        with as_somebody():
            run.drain()
        assert run.whole()
        assert {Path(one.path).name for one in run.engine.tree.by_wd.values()} == {
            root.name,
            "closed",
            "inner",
        }

    def test_the_limit_of_folders_makes_a_watch_partial(self, begin: Begin, tmp_path: Path) -> None:
        for name in "abcd":
            (tmp_path / name).mkdir()
        run = begin(folders_limit=3)
        assert not run.whole()
        assert len(run.engine.tree.not_watched) == 2
        assert [one.kind for one in run.all] == ["not_watched"] * 2
        for path in [*run.engine.tree.not_watched]:
            Path(path).rmdir()
        assert {kind for kind, _ in run.told()} == {"delete"}
        assert run.whole()

    def test_the_kernels_limits_are_named(self, tmp_path: Path) -> None:
        """In a user namespace of its own, whose limits do not touch the machine's."""
        for name in "abcd":
            (tmp_path / name).mkdir()
        script = (
            "import sys; from lightagentd.toolkit.watching.engine import Engine;"
            "from lightagentd.toolkit.watching.selection import OwnFolders, Selection;"
            "made = lambda: Engine(sys.argv[1], Selection(kinds=frozenset(['create']), recursive=True),"
            " OwnFolders([]));"
            "engine = made(); engine.begin(); print(engine.whole, len(engine.tree.by_wd),"
            " set(engine.tree.not_watched.values()))\n"
            "try: made()\n"
            "except Exception as err: print(err.code, err.suggestion)"
        )
        limits = "cd /proc/sys/user && echo 3 >max_inotify_watches && echo 1 >max_inotify_instances"
        done = subprocess.run(
            [
                *("unshare", "-Ur", "sh", "-c", f'({limits}) && exec "$@"', "sh"),
                *(sys.executable, "-c", script, str(tmp_path)),
            ],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
        )
        if done.returncode and "unshare" in done.stderr:
            pytest.skip(f"no user namespace here: {done.stderr}")
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == "False 3 {'fs.inotify.max_user_watches is reached'}"
        assert second.startswith("limit_exceeded")
        assert "max_user_instances" in second

    def test_roots_that_cannot_be_watched(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(NotFound):
            begin(tmp_path / "nothing")
        with pytest.raises(InvalidArgument):
            begin(tmp_path / "file")
        with pytest.raises(InvalidArgument):
            begin(tmp_path / "link")
        with pytest.raises(ToolError, match="own folders"):
            begin(tmp_path, own=(str(tmp_path),))


class TestRoot:
    @pytest.fixture(autouse=True)
    def always_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_module, "ROOT_CHECK_S", 0.0)

    def test_a_root_that_is_deleted_and_comes_back(self, begin: Begin, tmp_path: Path) -> None:
        root = tmp_path / "root"
        (root / "a").mkdir(parents=True)
        run = begin(root, kinds=("create",))
        (root / "a").rmdir()
        root.rmdir()
        assert run.told() == [("root_gone", ".")]
        assert not run.whole()
        root.mkdir()
        (root / "file").touch()
        assert run.told() == [("root_back", "."), ("create", "file")]
        (root / "other").touch()
        assert run.told() == [("create", "other")]

    def test_a_root_that_is_replaced(self, begin: Begin, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.mkdir()
        run = begin(root, kinds=("create",))
        root.rename(tmp_path / "old")
        root.mkdir()
        assert run.told() == [("root_gone", "."), ("root_back", ".")]
        (tmp_path / "old" / "file").touch()
        (root / "file").touch()
        assert run.told() == [("create", "file")]

    def test_a_root_whose_parent_is_renamed(self, begin: Begin, tmp_path: Path) -> None:
        root = tmp_path / "above" / "root"
        root.mkdir(parents=True)
        run = begin(root, kinds=("create",))
        (tmp_path / "above").rename(tmp_path / "elsewhere")
        assert run.told() == [("root_gone", ".")]
        (tmp_path / "elsewhere" / "root" / "file").touch()
        assert run.told() == []

    def test_a_root_whose_parent_is_replaced(self, begin: Begin, tmp_path: Path) -> None:
        root = tmp_path / "above" / "root"
        root.mkdir(parents=True)
        run = begin(root, kinds=("create",))
        (tmp_path / "above").rename(tmp_path / "elsewhere")
        root.mkdir(parents=True)
        assert run.told() == [("root_gone", "."), ("root_back", ".")]
        (root / "file").touch()
        assert run.told() == [("create", "file")]

    def test_a_watch_made_again_tells_what_changed_since(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "before").touch()
        (tmp_path / "folder").mkdir()
        since_ns = (tmp_path / "before").stat().st_ctime_ns
        while True:  # until the kernel's coarse clock has moved on
            (tmp_path / "folder" / "after").write_text("x")
            if (tmp_path / "folder" / "after").stat().st_ctime_ns > since_ns:
                break
        run = begin(since_ns=since_ns)
        told = [(one.kind, os.path.relpath(one.path, tmp_path), one.found_by) for one in run.all]
        assert told == [("gap", ".", "kernel"), ("modify", "folder/after", "gap")]

    def test_a_watch_made_again_waits_for_a_root_that_went(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(tmp_path / "root", since_ns=1)
        assert [one.kind for one in run.all] == ["gap", "root_gone"]
        (tmp_path / "root").mkdir()
        assert run.told() == [("root_back", ".")]


def queue_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


class TestOverflow:
    @pytest.fixture(autouse=True)
    def queue_can_be_filled(self) -> None:
        if queue_limit() > 100_000:
            pytest.skip("this machine's queue is too long to be filled in a test")

    @pytest.fixture
    def overflowed(self, begin: Begin, tmp_path: Path) -> Run:
        """An engine that did not read while more happened than the queue holds."""
        (tmp_path / "old").mkdir()
        for name in ("deleted", "written", "kept"):
            (tmp_path / "old" / name).write_text("1")
        (tmp_path / "gone" / "deep").mkdir(parents=True)
        (tmp_path / "gone" / "deep" / "file").touch()
        run = begin(kinds=("create", "delete", "modify"))
        for number in range(50):
            (tmp_path / f"told{number}").touch()
        with (tmp_path / "told0").open("wb", 0) as one, (tmp_path / "told1").open("wb", 0) as other:
            for _ in range(queue_limit() // 2):  # equal events in a row would be one
                one.write(b"x")
                other.write(b"x")
        for number in range(50):
            (tmp_path / f"lost{number}").touch()
        return run

    def test_every_file_is_told_once(self, begin: Begin, tmp_path: Path) -> None:
        run = begin(kinds=("create", "delete", "modify"))
        for number in range(queue_limit() + 500):
            os.close(os.open(tmp_path / f"n{number}", os.O_CREAT | os.O_WRONLY))
        found = run.drain()
        markers = [one.kind for one in found if one.kind in ("overflow", "rescanned")]
        assert markers == ["overflow", "rescanned"]
        made = [one.path for one in found if one.kind == "create"]
        assert len(made) == len(set(made)) == queue_limit() + 500
        assert sum(one.found_by == "rescan" for one in found) >= 500

    def test_the_rescan_finds_what_was_lost(self, overflowed: Run, tmp_path: Path) -> None:
        (tmp_path / "old" / "deleted").unlink()
        (tmp_path / "old" / "written").write_text("longer")
        (tmp_path / "gone" / "deep" / "file").unlink()
        (tmp_path / "gone" / "deep").rmdir()
        (tmp_path / "gone").rmdir()
        (tmp_path / "new" / "deep").mkdir(parents=True)
        (tmp_path / "new" / "deep" / "file").touch()
        rescanned = {
            (one.kind, os.path.relpath(one.path, tmp_path))
            for one in overflowed.drain()
            if one.found_by in ("rescan", "scan")
        }
        assert {
            ("delete", "old/deleted"),
            ("modify", "old/written"),
            ("delete", "gone"),
            ("delete", "gone/deep"),
            ("delete", "gone/deep/file"),
            ("create", "new"),
            ("create", "new/deep"),
            ("create", "new/deep/file"),
        } <= rescanned
        assert not any(path.startswith("old/kept") for _, path in rescanned)
        (tmp_path / "new" / "deep" / "later").touch()
        assert overflowed.told() == [("create", "new/deep/later")]
        assert overflowed.whole()

    def test_while_a_rescan_is_due_a_watch_is_not_whole(
        self, overflowed: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        overflowed.engine._rescan_pause_s = 3600
        overflowed.engine._rescanned = time.monotonic()
        while overflowed.engine._rescan_at is None:
            overflowed.engine.step()
        assert not overflowed.whole()
        assert overflowed.engine.seen_us <= overflowed.engine._sure_ns // 1000
        overflowed.engine._rescan_at = 0.0
        overflowed.drain()
        assert overflowed.whole()

    def test_what_a_rescan_told_is_not_told_again_by_the_kernel(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "old").touch()
        run = begin(kinds=("create", "delete"))
        (tmp_path / "new").touch()
        (tmp_path / "old").unlink()
        run.engine._rescan()
        told = [(one.kind, one.found_by) for one in run.drain()]
        assert sorted(told[:2]) == [("create", "rescan"), ("delete", "rescan")]
        assert [kind for kind, _ in told[2:]] == ["rescanned"]

    def test_too_many_entries_are_compared_by_time(self, begin: Begin, tmp_path: Path) -> None:
        for number in range(20):
            (tmp_path / f"old{number}").touch()
        run = begin(entries_limit=10, kinds=("create", "modify"))
        run.drain()
        run.engine._overflowed()
        (tmp_path / "new").touch()
        found = run.drain()
        assert ("create", str(tmp_path / "new")) in [(one.kind, one.path) for one in found]
        rescanned = next(one for one in found if one.kind == "rescanned")
        assert rescanned.detail is not None
        assert rescanned.detail["folders_compared_by_time_only"] == 1
