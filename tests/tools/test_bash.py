"""The tool bash, with real shells."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from lightagentd.errors import Conflict, NotFound
from lightagentd.tool import Effect, InvalidArgument, TimedOut, ToolError
from lightagentd.worker.outputs import CALL_LIMIT_BYTES
from tests.clock import pass_time, passing

from .conftest import AskPreview, Call, CallContext, Load

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_a_command_gives_its_output_and_status(call: Call) -> None:
    result = await call("bash", "exec", command="echo hello; printf world")
    assert result.output == "hello\nworld\n"
    assert result.metadata["exit_status"] == 0
    assert result.metadata["signal"] == ""
    assert result.metadata["timed_out"] is False
    assert result.metadata["stdout_bytes"] == 11
    assert result.metadata["stdout_omitted_bytes"] == 0
    assert result.metadata["duration_ms"] >= 0


async def test_a_silent_command_says_so(call: Call) -> None:
    assert (await call("bash", "exec", command="true")).output == "(no output)\n"


async def test_errors_are_a_block_of_their_own_and_the_status_is_the_last_line(call: Call) -> None:
    result = await call("bash", "exec", command="echo out; echo bad >&2; exit 7")
    assert result.output == "out\nstderr:\nbad\nexit status 7\n"
    assert result.metadata["exit_status"] == 7


async def test_a_status_of_0_is_not_mentioned(call: Call) -> None:
    assert (await call("bash", "exec", command="echo warning >&2")).output == "stderr:\nwarning\n"


async def test_a_signal_is_named(call: Call) -> None:
    result = await call("bash", "exec", command="kill -SEGV $$")
    assert result.output == "ended by SIGSEGV\n"
    assert (result.metadata["signal"], result.metadata["exit_status"]) == ("SIGSEGV", 139)


async def test_a_missing_command_is_a_result_and_not_an_error(call: Call) -> None:
    result = await call("bash", "exec", command="no-such-command")
    assert result.metadata["exit_status"] == 127
    assert "no-such-command: command not found" in result.output


async def test_it_is_bash_without_the_files_of_a_person(call: Call, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("echo from bashrc\n")
    result = await call("bash", "exec", command='a=(1 2); echo "${a[1]} $-"')
    assert result.output.startswith("2 ")
    assert "i" not in result.output
    assert result.metadata["shell"] == "/bin/bash"
    assert "note" not in result.metadata


async def test_without_bash_the_shell_is_sh_and_the_metadata_says_so(
    load: Load, context: CallContext
) -> None:
    found = load("bash")
    vars(found.tool)["shells"] = ("/bin/there-is-no-bash", "/bin/sh")
    action = found.actions["exec"]
    result = await action.method(context, action.args_model.model_validate({"command": "echo $0"}))
    assert result.output == "/bin/sh\n"
    assert "/bin/sh ran the command" in result.metadata["note"]


@pytest.mark.parametrize("command", ["-x", "--version", "+x"])
async def test_a_command_that_begins_with_a_dash_is_never_an_option(call: Call, command: str) -> None:
    result = await call("bash", "exec", command=command)
    assert result.metadata["exit_status"] == 127
    assert "command not found" in result.output


async def test_it_starts_in_the_root_or_the_folder_that_is_named(call: Call, tmp_path: Path) -> None:
    assert (await call("bash", "exec", command="pwd")).output == "/\n"
    assert (await call("bash", "exec", command="pwd", cwd=str(tmp_path))).output == f"{tmp_path}\n"


async def test_a_folder_that_does_not_exist_is_named(call: Call, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="absent: there is no such folder"):
        await call("bash", "exec", command="pwd", cwd=str(tmp_path / "absent"))


async def test_a_relative_folder_is_refused(call: Call) -> None:
    with pytest.raises(InvalidArgument, match="not an absolute path") as caught:
        await call("bash", "exec", command="pwd", cwd="etc")
    assert caught.value.field == "cwd"


async def test_home_and_the_temporary_folder_are_the_scratch_folder(call: Call, tmp_path: Path) -> None:
    result = await call("bash", "exec", command='echo "$HOME $TMPDIR"; mktemp')
    lines = result.output.splitlines()
    assert lines[0] == f"{tmp_path} {tmp_path}"
    assert Path(lines[1]).parent == tmp_path


async def test_the_environment_of_the_worker_is_not_seen(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hidden-value")
    assert "hidden-value" not in (await call("bash", "exec", command="env")).output


async def test_standard_input_is_empty(call: Call) -> None:
    assert (await call("bash", "exec", command="cat; echo end")).output == "end\n"


async def test_a_nul_byte_is_refused(call: Call) -> None:
    with pytest.raises(InvalidArgument, match="NUL") as caught:
        await call("bash", "exec", command="echo a\0b")
    assert caught.value.field == "command"


async def test_half_a_surrogate_pair_is_refused(call: Call) -> None:
    with pytest.raises(ValidationError):
        await call("bash", "exec", command="echo \ud800")


async def test_a_command_longer_than_the_kernel_takes_is_refused_and_the_longest_runs(call: Call) -> None:
    with pytest.raises(InvalidArgument, match="longer than 131071 bytes"):
        await call("bash", "exec", command=": " + "x" * 131_070)
    assert (await call("bash", "exec", command=": " + "x" * 131_069)).output == "(no output)\n"


async def test_an_empty_command_and_an_unknown_argument_are_refused(call: Call) -> None:
    with pytest.raises(ValidationError):
        await call("bash", "exec", command="")
    with pytest.raises(ValidationError):
        await call("bash", "exec", command="true", shell="zsh")


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
async def test_a_timeout_that_is_no_time_is_refused(call: Call, timeout_s: float) -> None:
    with pytest.raises(ValidationError):
        await call("bash", "exec", command="true", timeout_s=timeout_s)


async def when(seen: Callable[[], object]) -> None:
    """Wait until there is something to see."""
    async with asyncio.timeout(60):
        while not seen():
            await asyncio.sleep(0.01)


async def test_a_timeout_raises_with_the_end_of_the_output_so_far(call: Call, context: CallContext) -> None:
    command = "seq 5000; echo trouble >&2; sleep 600"
    calling = asyncio.create_task(call("bash", "exec", command=command, timeout_s=20))
    await when(lambda: ("stderr", "trouble\n") in context.shown)
    await when(lambda: [text for name, text in context.shown if name == "stdout"][-1].endswith("\n5000\n"))
    pass_time(20)
    with pytest.raises(TimedOut) as caught:
        await calling
    message = caught.value.message
    assert "did not end within 20 s" in message
    assert "\n4999\n5000" in message
    assert "trouble" in message
    assert "\n1000\n" not in message
    assert len(message) < 5000


async def test_the_time_of_the_context_is_the_final_bound(call: Call, context: CallContext) -> None:
    context.timeout_s = 0.5
    with pytest.raises(TimedOut):
        await call("bash", "exec", command="sleep 600", timeout_s=500)


async def test_a_timeout_ends_what_the_command_started(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = f"(trap '' TERM; echo $BASHPID >{file}; while :; do sleep 0.05; done) & wait"
    calling = asyncio.create_task(call("bash", "exec", command=command, timeout_s=20))
    await when(lambda: file.exists() and file.read_text())
    await passing(20, calling)
    with pytest.raises(TimedOut):
        await calling
    with contextlib.suppress(psutil.NoSuchProcess):  # it may go between two looks
        process = psutil.Process(int(file.read_text()))
        await when(lambda: process.status() == psutil.STATUS_ZOMBIE)


async def test_a_cancel_ends_the_command(call: Call, tmp_path: Path) -> None:
    task = asyncio.create_task(call("bash", "exec", command=f"echo $$ >{tmp_path}/pid; exec sleep 600"))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


async def test_a_job_in_the_background_does_not_hold_the_call(call: Call, context: CallContext) -> None:
    context.timeout_s = 600
    async with asyncio.timeout(60):
        result = await call("bash", "exec", command="sleep 500 & echo started")
    assert result.output == "started\n"


async def test_output_is_shown_live_and_a_cut_character_is_shown_whole(
    call: Call, context: CallContext
) -> None:
    go = context.scratch / "go"
    command = rf"printf 'a\303'; until test -e {go}; do sleep 0.01; done; printf '\251b'; echo no >&2"
    calling = asyncio.create_task(call("bash", "exec", command=rf"{command}; sleep 0.1; printf '\303'"))
    await when(lambda: context.shown)
    go.touch()
    result = await calling
    shown = [text for stream, text in context.shown if stream == "stdout"]
    assert shown[0] == "a"
    assert "".join(shown) == "aéb\N{REPLACEMENT CHARACTER}"
    assert ("stderr", "no\n") in context.shown
    assert result.output.startswith("aéb")


async def test_bytes_that_are_not_utf8_and_terminal_escapes_survive(call: Call) -> None:
    result = await call("bash", "exec", command=r"printf '\033[31mred\033[0m \377\n'")
    assert result.output == "\x1b[31mred\x1b[0m \N{REPLACEMENT CHARACTER}\n"


async def test_endless_output_is_capped_and_counted(call: Call) -> None:
    result = await call("bash", "exec", command="echo first; yes | head -c 3000000; echo last")
    assert result.output.startswith("first\n")
    assert "\nlast\n(All of it can be read again" in result.output
    assert len(result.output) < 70_000
    assert result.metadata["stdout_bytes"] == 3_000_011
    assert result.metadata["stdout_omitted_bytes"] == 3_000_011 - 65_536
    left_out = re.search(r"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", result.output)
    assert left_out is not None
    assert 0 <= int(left_out[1]) - (3_000_011 - 65_536) <= 8, "lines that were cut go, too"


@pytest.mark.parametrize(
    ("text", "effect", "words"),
    [
        ("touch: cannot touch '/x': Read-only file system", "observe", ["'observe'", "'change'"]),
        ("touch: cannot touch '/x': Read-only file system", "reach", ["'reach'; it", "'change'"]),
        ("connect: Network is unreachable", "observe", ["'observe'", "'reach'"]),
        ("curl: (6) Could not resolve host: example.org", "observe", ["'observe'", "'reach'"]),
        ("ping: Temporary failure in name resolution", "observe", ["'observe'", "'reach'"]),
        ("cat: /etc/shadow: Permission denied", "observe", ["'observe'", "'reach'", "'change'"]),
        ("nc: Transport endpoint is already connected", "reach", ["'reach'; it", "'change'"]),
        ("mount: Operation not permitted", "observe", ["'observe'", "'reach'", "'change'"]),
        ("mount: /mnt: must be superuser to use mount.", "reach", ["'reach'; it", "'change'"]),
        ("sysctl: permission denied on key 'kernel.hostname'", "observe", ["'observe'", "'change'"]),
        ("curl: (7) Failed to connect: Couldn't connect to server", "observe", ["'observe'", "'reach'"]),
    ],
)
async def test_a_failure_of_the_sandbox_names_the_effect_and_the_way_out(
    call: Call, text: str, effect: str, words: list[str]
) -> None:
    result = await call("bash", "exec", command=f'echo "{text}" >&2; exit 1', effect=effect)
    hint = result.metadata["sandbox_hint"]
    assert all(word in hint for word in words)
    assert result.output == f"stderr:\n{text}\n{hint}\nexit status 1\n"


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("echo 'Read-only file system' >&2", "observe"),
        ("echo 'Read-only file system'; exit 1", "observe"),
        ("echo 'Permission denied' >&2; exit 1", "change"),
        ("echo 'Network is unreachable' >&2; exit 1", "reach"),
        ("echo 'no such host' >&2; exit 1", "observe"),
    ],
)
async def test_other_failures_give_no_hint(call: Call, command: str, effect: str) -> None:
    result = await call("bash", "exec", command=command, effect=effect)
    assert "sandbox_hint" not in result.metadata
    assert "asked for" not in result.output


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("ls /run/nginx.pid 2>/dev/null; true", "/run"),
        ("cat /var/run/x.pid || true", "/var/run"),
        ("test -S /srv/app/app.sock &>/dev/null; echo $?", ".sock"),
        ("ls /root 2> /dev/null || echo none", "/root"),
        ("ls /run/systemd/units 2>/dev/null; true", ""),
        ("ls /run/nginx.pid; true", ""),
        ("ls /usr/run-parts /srv/root.txt 2>/dev/null; true", ""),
    ],
)
async def test_silence_about_what_is_closed_gives_a_hint(call: Call, command: str, named: str) -> None:
    result = await call("bash", "exec", command=command)
    hint = result.metadata.get("sandbox_hint", "")
    assert f"names {named}." in hint if named else hint == ""
    assert hint in result.output
    changing = await call("bash", "exec", command=command, effect="change")
    assert "sandbox_hint" not in changing.metadata


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_a_real_refusal_gives_a_hint(call: Call) -> None:
    result = await call("bash", "exec", command="echo x >/etc/lightagentd-test")
    assert "'change'" in result.metadata["sandbox_hint"]


async def test_calls_side_by_side_do_not_mix(call: Call) -> None:
    results = await asyncio.gather(*(call("bash", "exec", command=f"sleep 0.1; echo {n}") for n in range(5)))
    assert [result.output for result in results] == [f"{n}\n" for n in range(5)]


def test_the_declaration_lets_the_caller_choose_and_taints(load: Load) -> None:
    action = load("bash").actions["exec"]
    assert (action.effect, action.taints, action.timeout_s) == (None, True, 120)
    schema = action.args_model.model_json_schema()
    assert schema["required"] == ["command"]
    assert action.args_model.model_validate({"command": "x"}).model_dump()["effect"] is Effect.OBSERVE


async def test_a_long_output_is_kept_whole_and_the_result_says_how_to_read_it(
    call: Call, context: CallContext
) -> None:
    result = await call("bash", "exec", command="seq 1 5000; seq 1 10 >&2; exit 3")
    handle = result.metadata["output_handle"]
    numbers = "".join(f"{n}\n" for n in range(1, 5001)).encode()
    assert context.kept[0] == ("stdout", numbers, len(numbers))
    assert context.kept[1][0] == "stderr"
    assert result.metadata["kept_whole"] is True
    note = f"(All of it can be read again with bash read_output, handle {handle})"
    assert result.output.endswith(f"\n10\n{note}\nexit status 3\n")


async def test_a_short_output_is_not_kept(call: Call, context: CallContext) -> None:
    result = await call("bash", "exec", command="seq 1 1000")
    assert context.kept == []
    assert "output_handle" not in result.metadata
    assert result.output.endswith("1000\n")


async def test_what_is_kept_is_bounded_over_both_streams(call: Call, context: CallContext) -> None:
    size = CALL_LIMIT_BYTES // 2 + 1
    command = f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2"
    result = await call("bash", "exec", command=command)
    kept = {stream: len(data) for stream, data, _ in context.kept}
    assert kept == {"stdout": size, "stderr": CALL_LIMIT_BYTES - size}
    assert [total for _, _, total in context.kept] == [size, size]
    assert result.metadata["kept_whole"] is False
    assert "The first 16 MiB of it can be read again" in result.output


async def test_a_timeout_says_where_the_output_until_then_is(call: Call, context: CallContext) -> None:
    calling = asyncio.create_task(call("bash", "exec", command="seq 1 10000; sleep 60", timeout_s=20))
    await when(lambda: context.shown and context.shown[-1][1].endswith("\n10000\n"))
    pass_time(20)
    with pytest.raises(TimedOut, match="All of it can be read again with bash read_output, handle out_"):
        await calling
    assert context.kept[0][1].endswith(b"\n10000\n")


async def test_a_worker_has_no_output_of_other_calls(call: Call) -> None:
    with pytest.raises(NotFound):
        await call("bash", "read_output", handle="out_0123456789abcdef")


@pytest.mark.parametrize("handle", ["-x", "../out_0123456789abcdef", "out_0123456789ABCDEF", "out_1"])
async def test_a_handle_is_nothing_else(call: Call, handle: str) -> None:
    with pytest.raises(ValidationError):
        await call("bash", "read_output", handle=handle)


async def test_an_approved_command_runs_with_the_files_and_in_the_folder_that_were_shown(
    call: Call, preview: AskPreview, context: CallContext, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    script, own = folder / "fix.sh", folder / "own.sh"
    script.write_text("pwd\n")
    script.chmod(0o666)
    own.write_text("echo own\n")
    own.chmod(0o600)
    args = {"command": "sh ./fix.sh; sh 'own.sh'", "cwd": str(folder), "effect": "change"}
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    shown = await preview("bash", "exec", **args)
    assert shown is not None
    assert f"Others can write {script}: " in shown.text
    assert digest in shown.text
    context.expected = json.loads(json.dumps(shown.expected))
    assert (await call("bash", "exec", **args)).output == f"{folder}\nown\n"

    for content, hint in (
        ("echo owned\n", "look at it"),
        ("pwd\necho owned\n", "It only grew, from 4 to 15"),
    ):
        script.write_text(content)
        with pytest.raises(Conflict, match=f"{script} is not as it was") as caught:
            await call("bash", "exec", **args)
        assert hint in caught.value.suggestion
    script.write_text("pwd\n")
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    assert (await call("bash", "exec", **args)).output.endswith("own\n"), "it still is the same folder"
    folder.unlink()
    shutil.copytree(elsewhere, folder)
    with pytest.raises(Conflict, match="folder is not as it was"):
        await call("bash", "exec", **args)
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match="not there any more"):
        await call("bash", "exec", **args)


@pytest.mark.parametrize("open_part", ["file", "folder", "link", "nothing", "sticky folder"])
async def test_a_file_counts_as_others_if_anything_on_the_way_to_it_is(
    preview: AskPreview, context: CallContext, tmp_path: Path, open_part: str
) -> None:
    context.owner = os.getuid()
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        folder = root / "folder"
        folder.mkdir(mode=0o755)
        file = folder / "script"
        file.write_text("x")
        file.chmod(0o666 if open_part == "file" else 0o644)
        folder.chmod({"folder": 0o777, "sticky folder": 0o1777, "link": 0o777}.get(open_part, 0o755))
        (root / "link").symlink_to("folder/../folder/script")
        name = root / "link" if open_part == "link" else file
        shown = await preview("bash", "exec", command=f"sh {name}", cwd="/", effect="change")
        assert shown is not None
        assert bool(shown.expected["files"]) is (open_part in ("file", "folder", "link"))
    finally:
        shutil.rmtree(root)


async def test_the_preview_is_the_command_and_its_folder(preview: AskPreview) -> None:
    shown = await preview("bash", "exec", command="rm -r /srv/old\nsync", cwd="/srv", effect="change")
    assert shown is not None
    assert shown.text == "In /srv, with /bin/bash:\nrm -r /srv/old\nsync\n"
    with pytest.raises(InvalidArgument):
        await preview("bash", "exec", command="a\0b", effect="change")
