"""Checks the configuration, the files beside it, and the owners and modes of the daemon's files."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from lightagentd.api import Finding
from lightagentd.client.blocking import SYSTEM_SOCKET
from lightagentd.config import configuration
from lightagentd.config.triggers import check_trigger, trigger_files
from lightagentd.config.unattended import check as check_prompt
from lightagentd.config.unattended import prompt_files
from lightagentd.doctor.finding import AS_ROOT, not_tried, note, ok, wrong
from lightagentd.errors import ConfigError, LightagentError
from lightagentd.host.paths import ENVIRONMENT_FILE, Paths
from lightagentd.host.users import called
from lightagentd.llm.environment import Environment
from lightagentd.llm.in_force import in_force
from lightagentd.text.reason import reason

_SHARED_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ANY_OTHER = stat.S_IRWXG | stat.S_IRWXO
_OF_UNITS = ("lightagentd", "lightagent-keys")
"""What StateDirectory= names in units; of lightagent-change it names what is below."""
_NAMED = 5
"""How many files one finding names."""


def check(paths: Paths) -> list[Finding]:
    found = [*_configuration(paths), *_prompts(paths), _panic(paths), *_permissions(paths)]
    if str(paths.socket) == SYSTEM_SOCKET:
        found += linked(paths.state.parent / name for name in _OF_UNITS)
    return found


def linked(folders: Iterable[Path]) -> list[Finding]:
    """State folders of units that are symbolic links, which systemd does not follow (238/STATE_DIRECTORY)."""
    found = []
    for path in folders:
        if path.is_symlink():
            target = os.path.realpath(path)
            remedy = (
                f"Have the folder itself there: rm {path}; mkdir {path}; mount --bind {target} {path}; and a "
                "line in /etc/fstab, see lightagentd(8)."
            )
            detail = f"{path} is a symbolic link, and with it systemd does not start the unit"
            found.append(wrong("files", f"folder {path.name}", detail, remedy))
    return found


def _configuration(paths: Paths) -> list[Finding]:
    try:
        loaded = in_force(*configuration.load(paths.config), Environment()).config
    except (ConfigError, OSError) as err:
        return [_unreadable("configuration", "configuration", err)]
    names = ", ".join(str(path) for path in configuration.files(paths.config))
    found = [ok("configuration", "configuration", names or f"no file in {paths.config}: the defaults apply")]
    providers = loaded.models.providers.values()
    named = [path for one in providers for path in (one.api_key_file, one.client_key) if path is not None]
    keys = list(dict.fromkeys(path for path in named if len(path.parts) > 1))
    environment = paths.config / ENVIRONMENT_FILE
    if environment.exists():
        keys.append(environment)
    for path in keys:
        try:
            mode = path.stat().st_mode
        except PermissionError as err:
            found.append(not_tried("files", f"key file {path}", str(err.strerror)))
        except OSError as err:
            remedy = f"Write the key to {path}, or name another file in the configuration."
            found.append(wrong("files", f"key file {path}", f"{err.strerror}", remedy))
        else:
            if mode & (stat.S_IROTH | _SHARED_WRITE):
                detail = f"its mode is {stat.S_IMODE(mode):04o}, so it is open to others"
                give = "" if path == environment else _give_to_daemon(path, paths)  # systemd reads that one
                remedy = f"Close it ({give}chmod 600 {path}), and think about a new key."
                found.append(wrong("files", f"key file {path}", detail, remedy))
            else:
                found.append(ok("files", f"key file {path}", "closed"))
    return found


def _give_to_daemon(path: Path, paths: Paths) -> str:
    """The command that gives a file to the daemon's user, so that they can read it when others cannot."""
    owner = path.stat().st_uid
    try:
        user = paths.state.stat().st_uid
    except OSError:  # it never ran
        user = os.geteuid()
        if str(paths.socket) == SYSTEM_SOCKET:
            with contextlib.suppress(KeyError):
                user = pwd.getpwnam("lightagent").pw_uid
    if owner == user:
        return ""
    name = str(user)
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(user).pw_name
    return f"chown {name} {path}; "


def _unreadable(group: str, name: str, err: ConfigError | OSError) -> Finding:
    """The finding for an unusable file; if only this user may not read it, the file is not at fault."""
    if isinstance(err, PermissionError) or isinstance(err.__cause__, PermissionError):
        return not_tried(group, name, reason(err, at=True))
    remedy = getattr(err, "suggestion", "") or "Mend the file that it names."
    return wrong(group, name, reason(err, at=True), f"{remedy} Check it with: lactl config check")


def _prompts(paths: Paths) -> list[Finding]:
    """Check the files of scheduled prompts and of triggers."""
    found: list[Finding] = []
    for kind, name, files, check_one in (
        ("prompt", "prompts on a calendar", prompt_files, check_prompt),
        ("trigger", "triggers", trigger_files, check_trigger),
    ):
        wrong_ones, sound = [], 0
        try:
            paths_of = files(paths.config)
        except OSError as err:
            found.append(not_tried("configuration", name, reason(err, at=True)))
            continue
        for path in paths_of:
            try:
                check_one(path)
                sound += 1
            except (LightagentError, OSError) as err:
                broken = err if isinstance(err, ConfigError | OSError) else ConfigError(str(err))
                wrong_ones.append(_unreadable("configuration", f"{kind} {path.stem}", broken))
        found += wrong_ones or [ok("configuration", name, f"{sound} files")]
    return found


def _panic(paths: Paths) -> Finding:
    try:
        is_on = "panic" in os.listdir(paths.state)  # noqa: PTH208 - Path.iterdir is lazy, and fails later
    except FileNotFoundError:
        is_on = False
    except OSError as err:
        return not_tried("daemon", "emergency stop", f"{paths.state}: {err.strerror}")
    if is_on:
        return note("daemon", "emergency stop", "everything is stopped", "End it with: lactl panic --off")
    return ok("daemon", "emergency stop", "off")


def _permissions(paths: Paths) -> list[Finding]:
    trusted = {0, os.geteuid()}
    with contextlib.suppress(OSError):
        trusted.add(paths.state.stat().st_uid)  # the daemon's user, when root asks about its folders
    found = [_configuration_modes(paths, trusted)]
    for name, path, forbidden in (
        ("state folder", paths.state, _ANY_OTHER),
        ("history's folder", paths.history, _ANY_OTHER),
        ("history's file", paths.history / "data.mdb", _ANY_OTHER),
        ("private keys", paths.keys, _ANY_OTHER),
        ("runtime folder", paths.runtime, _SHARED_WRITE),
        ("workers' sockets", paths.workers, _SHARED_WRITE | stat.S_IROTH | stat.S_IXOTH),
    ):
        try:
            info = path.stat()
        except FileNotFoundError:
            continue
        except OSError as err:
            found.append(not_tried("files", name, f"{path}: {err.strerror}"))
            continue
        problem = _too_open(path, info, trusted, forbidden)
        if problem is not None:
            found.append(wrong("files", name, *problem))
        else:
            found.append(ok("files", name, f"{path} {stat.filemode(info.st_mode)}"))
    return found


def _configuration_modes(paths: Paths, trusted: set[int]) -> Finding:
    kept = [paths.config]
    bad, unseen = [], []
    try:
        kept += configuration.files(paths.config)
        for kind in ("agent", "tools", "skills", "policy.d", "prompts", "triggers"):
            folder = paths.config / kind
            kept += [folder, *folder.rglob("*")] if folder.is_dir() else []
    except OSError as err:
        unseen.append(reason(err, at=True))
    for path in kept:
        try:
            problem = _too_open(path, path.stat(), trusted, _SHARED_WRITE)
        except FileNotFoundError:
            continue
        except OSError as err:
            unseen.append(f"{path}: {err.strerror}")
            continue
        if problem is not None:
            bad.append(problem)
    name = "configuration's modes"
    if bad:
        details, remedies = zip(*bad[:_NAMED], strict=True)
        return wrong("files", name, "; ".join(details), " ".join(remedies))
    if unseen:
        return not_tried("files", name, unseen[0], AS_ROOT)
    return ok("files", name, "closed")


def _too_open(path: Path, info: os.stat_result, trusted: set[int], forbidden: int) -> tuple[str, str] | None:
    """What is wrong with the owner or mode of a path, and the remedy; None if nothing is."""
    if info.st_uid not in trusted:
        return f"{path} belongs to {called(info.st_uid)}", f"Give it back: chown root {path}."
    if info.st_mode & forbidden:
        mode = stat.S_IMODE(info.st_mode)
        return f"{path} has the mode {mode:04o}", f"Close it: chmod {mode & ~forbidden:04o} {path}."
    return None
