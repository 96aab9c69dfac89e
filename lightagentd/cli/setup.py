"""`lactl setup`: a model, who may ask, notifications and the shell, asked one after the other or by options.

Each step says what it did, or why not and what to do, and the others go on. On a terminal it asks about a
step that no option chose; elsewhere it changes nothing unasked. The model is `cli.setup_model`'s.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.options import Command, Settings, files
from lightagentd.cli.output import print_json, say, table
from lightagentd.cli.shell_code import SHELLS
from lightagentd.cli.terminal import BOLD, GREEN, MAGENTA, RED, is_terminal, may_type, style
from lightagentd.client.blocking import SYSTEM_SOCKET, socket_path
from lightagentd.errors import InvalidArgument, LightagentError, NotFound, PermissionDenied, Unavailable

if TYPE_CHECKING:
    from lightagentd.cli.setup_model import Surroundings, Wanted

DONE, UNCHANGED, OFFERED, FAILED = "done", "unchanged", "offered", "failed"
_COLOURS = {DONE: GREEN, OFFERED: MAGENTA, FAILED: RED}
_SYSTEM = Path("/etc/lightagentd")
_NOTIFY = "lightagent-notify"
_COMMAND_S = 90.0
_FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What came of a step. `state` is done, unchanged, offered (`suggestion` is how), or failed."""

    step: str
    state: str
    detail: str
    suggestion: str = ""


class Chosen(dict[str, Any]):
    """The options of the command line."""

    def skips(self, step: str) -> bool:
        """Whether the options choose steps, and not this one."""
        return not self[step] and any(self[name] for name in _STEPS)

    def wants(self, step: str, question: str) -> bool:
        """Whether a step is to be done: an option or --yes says so, or the person at the terminal."""
        return self[step] or self["yes"] or (may_type() and click.confirm(question, default=True))


@click.command("setup", cls=Command)
@click.option("--model", metavar="PROVIDER/MODEL", help="The model of agents that name none.")
@click.option(
    "--base-url", metavar="URL", default="", help="Where its provider is, if its name does not say."
)
@click.option(
    "--key-file",
    metavar="FILE",
    default="",
    shell_complete=files,
    help="The key of its provider: a file, '-' for standard input, or a credential lightagentd.NAME.",
)
@click.option("--test/--no-test", default=True, help="Try the model before it is used, or not.")
@click.option("--group", metavar="USER", help="Let USER ask agents, as a member of the daemon's group.")
@click.option("--desktop", is_flag=True, help="Turn on your desktop notifications.")
@click.option(
    "--shell", type=click.Choice(SHELLS), help="Add the shell integration to your shell's own file."
)
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: do the steps chosen, or all that can be done.")
@click.pass_obj
def command(settings: Settings, /, **options: Any) -> None:
    """Set up a language model, who may ask, desktop notifications and the shell integration.

    It looks for model servers on this machine (Ollama, llama.cpp, LM Studio, vLLM, LiteLLM) and at
    models.look_at, and for keys of known providers: in the configuration, in its folder keys/, among
    systemd's credentials, and in your environment. The daemon tries a model with one real call before
    agents use it; when that fails, nothing is changed. The call costs what it costs.

    \b
      sudo lactl setup                      asks for each step
      sudo lactl setup --model ollama/qwen3
      sudo lactl setup --model openai/gpt-5.1 --key-file ~/key
      sudo lactl setup --group "$USER"
      lactl setup --desktop --shell bash    your own desktop and shell

    With an option for a step, those steps alone are done. With --yes alone, all that was not done before,
    with the first model found. Without a terminal and without options nothing is changed: it says what
    there is, and what is missing. It can be run again at any time.

    It writes lightagentd.toml.d/50-setup.toml beside lightagentd.toml, and a key to keys/PROVIDER there,
    for the daemon alone to read. What you wrote or changed yourself stays. '--model runbook' goes back.

    The columns: step, state (done, unchanged, offered, failed), detail, what to do. A step that fails
    stops no other one; the exit status is that of the first that failed.
    """
    chosen = Chosen(options)
    if (chosen["base_url"] or chosen["key_file"]) and not chosen["model"]:
        raise click.UsageError("--base-url and --key-file go with --model.")
    found: dict[str, Any] = {}
    told: list[Step] = []
    status = 0
    for name, do in _STEPS.items():
        if chosen.skips(name):
            continue
        try:
            step = do(settings, chosen, found)
        except LightagentError as err:
            step = Step(step=name, state=FAILED, detail=err.message, suggestion=err.suggestion)
            status = status or err.exit_status
        if step is not None:
            told.append(step)
            if is_terminal() and not settings.json:
                _say(step)
    if settings.json:
        print_json({"ok": not status, "found": found, "steps": [asdict(step) for step in told]})
    elif not is_terminal():
        table((), ((step.step, step.state, step.detail, step.suggestion) for step in told))
    click.get_current_context().exit(status)


def _say(step: Step) -> None:
    state = style(f"{step.state:9}", _COLOURS.get(step.state, "0"))
    say(style(f"{step.step:7}", BOLD), " ", state, f" {step.detail}")
    if step.suggestion:
        say(f"{'':17} → {step.suggestion}")


def _folder(settings: Settings) -> Path:
    """The configuration of the daemon that is asked."""
    from lightagentd.host.paths import default_paths

    own, socket = default_paths(), settings.socket or socket_path()
    return _SYSTEM if socket == SYSTEM_SOCKET != str(own.socket) else own.config


def _model(settings: Settings, chosen: Chosen, found: dict[str, Any]) -> Step:
    from lightagentd.cli import setup_model as of
    from lightagentd.llm.providers import RUNBOOK

    try:
        running = settings.call("Manager.GetStatus")["model"]
    except LightagentError:
        running = ""
    there = of.look(_folder(settings), running)
    found |= {"servers": [asdict(server) for server in there.servers], "keys": there.keys}
    wanted = _wanted(settings, there, chosen)
    if wanted is not None:
        of.check_writable(there, wanted)
        done = of.set_model(settings, there, wanted)
        tried = ", and answers" if wanted.tests and wanted.model != RUNBOOK else ""
        state = DONE if done else UNCHANGED
        return Step(
            step="model", state=state, detail=f"{wanted.model} is the default{tried}", suggestion=done
        )
    if there.default != RUNBOOK:
        return Step(step="model", state=UNCHANGED, detail=f"{there.default} is the default")
    first = next(iter(there.candidates()), of.Wanted(model="PROVIDER/MODEL"))
    found_it = (
        f"found {first.model} ({first.where})" if first.where else "no server here, and no key, is found"
    )
    detail = f"none but the runbook, which answers what skills can; {found_it}"
    return Step(step="model", state=OFFERED, detail=detail, suggestion=of.again(first, there))


def _wanted(settings: Settings, there: Surroundings, chosen: Chosen) -> Wanted | None:
    """The model to set: the one of the options, the first one found with --yes, or the one that is typed."""
    from lightagentd.cli.setup_model import Wanted
    from lightagentd.llm.providers import RUNBOOK, known_provider

    found, tests = there.candidates(), chosen["test"]
    if chosen["model"]:
        address = chosen["base_url"] or next((c.base_url for c in found if c.model == chosen["model"]), "")
        return Wanted(model=chosen["model"], base_url=address, key_file=chosen["key_file"], tests=tests)
    if there.default != RUNBOOK and (chosen["yes"] or not may_type()):
        return None
    if chosen["yes"]:
        return replace(found[0], tests=tests) if found else None
    if not may_type():
        return None
    if not there.running:
        settings.call("Manager.GetStatus")  # says why, before anything is typed
    say(f"The model of agents that name none is {there.default}. Others:")
    for number, one in enumerate(found, 1):
        say(f"  {number}) {one.model}  ({one.where})")
    typed = click.prompt(
        "A number or PROVIDER/MODEL, which is tried with one real call; Enter keeps what there is",
        default="",
        show_default=False,
    ).strip()
    if not typed:
        return None
    numbered = typed.isdecimal() and 0 < int(typed) <= len(found)
    picked = found[int(typed) - 1] if numbered else Wanted(model=typed)
    known, key = known_provider(picked.model.partition("/")[0]), ""
    if known is not None and known.keys and known.name not in there.keys:
        key = click.prompt("Its key (not shown)", hide_input=True).strip()
    return replace(picked, key=key, tests=tests)


def _group(settings: Settings, chosen: Chosen, _: dict[str, Any]) -> Step | None:
    """Make a user a member of the group that may connect."""
    user = chosen["group"] or os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    if _folder(settings) != _SYSTEM or (user == "root" and not chosen["group"]):
        if chosen["group"]:
            raise InvalidArgument("This daemon is your own, and asks for no group.", field="group")
        return None
    from lightagentd.config.configuration import load

    name = load(_SYSTEM)[0].daemon.socket_group
    try:
        account, group = pwd.getpwnam(user), grp.getgrnam(name)
    except KeyError as err:
        raise NotFound(f"There is no such user or group: {err.args[0]}.", field="group") from err
    if user in group.gr_mem or account.pw_gid == group.gr_gid:
        return Step(step="group", state=UNCHANGED, detail=f"{user} is in the group {name}")
    hint = shlex.join(["sudo", "lactl", "setup", "--group", user])
    if os.geteuid() != 0 and chosen["group"]:
        raise PermissionDenied("Only root may add somebody to a group.", suggestion=f"Run: {hint}")
    if os.geteuid() != 0 or not chosen.wants("group", f"Let {user} ask agents (group {name})?"):
        return Step(step="group", state=OFFERED, detail=f"{user} is not in the group {name}", suggestion=hint)
    _ran(["usermod", "-aG", name, user])
    return Step(step="group", state=DONE, detail=f"{user} is in the group {name}", suggestion="Log in again.")


def _desktop(_: Settings, chosen: Chosen, __: dict[str, Any]) -> Step | None:
    """Turn on the unit of the user's own service manager."""
    if (step := _of_person("desktop", "--desktop")) is not None:
        return step
    if not chosen["desktop"] and not os.environ.get("XDG_CURRENT_DESKTOP"):
        return None
    how = ["systemctl", "--user", "enable", "--now", _NOTIFY]
    if _ran([*how[:2], "is-enabled", _NOTIFY], check=False) == "enabled":
        return Step(step="desktop", state=UNCHANGED, detail=f"{_NOTIFY} is enabled")
    if not chosen.wants("desktop", "Show desktop notifications of approvals and of finished prompts?"):
        return Step(step="desktop", state=OFFERED, detail=f"{_NOTIFY} is off", suggestion=shlex.join(how))
    _ran(how)
    return Step(step="desktop", state=DONE, detail=f"{_NOTIFY} is enabled")


def _shell(_: Settings, chosen: Chosen, __: dict[str, Any]) -> Step | None:
    """Add a line to the shell's own file."""
    shell = chosen["shell"] or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        return None
    if (step := _of_person("shell", f"--shell {shell}")) is not None:
        return step
    home = Path((shell == "zsh" and os.environ.get("ZDOTDIR")) or Path.home())
    path, init = home / _FILES[shell], f"lactl shell init {shell}"
    line = f"{init} | source" if shell == "fish" else f'eval "$({init})"'
    try:
        text = path.read_text(errors="replace") if path.exists() else ""
        if any(init in each and not each.lstrip().startswith("#") for each in text.splitlines()):
            return Step(step="shell", state=UNCHANGED, detail=f"{path} has it")
        if not chosen.wants("shell", f"Ask agents from {shell} by a key (a line in {path})?"):
            hint = f"lactl setup --shell {shell}"
            return Step(step="shell", state=OFFERED, detail=f"not in {path}", suggestion=hint)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:  # one write behind what is there: links, owner and mode stay
            before = "" if not text or text.endswith("\n") else "\n"
            file.write(f"{before}command -v lactl >/dev/null && {line}\n")
    except OSError as err:
        raise Unavailable(
            f"{path} cannot be written: {err.strerror}.", suggestion=f"Add to it: {line}"
        ) from err
    return Step(step="shell", state=DONE, detail=f"added to {path}", suggestion="In a new shell press alt-i.")


_STEPS = {"model": _model, "group": _group, "desktop": _desktop, "shell": _shell}


def _of_person(step: str, option: str) -> Step | None:
    """What is somebody's own is not for root to do in their name: it is offered to them."""
    person = os.environ.get("SUDO_USER", "root")
    if os.geteuid() != 0 or person == "root":
        return None
    return Step(step=step, state=OFFERED, detail=f"for {person} to do", suggestion=f"lactl setup {option}")


def _ran(argv: list[str], *, check: bool = True) -> str:
    """What a program said. Raises Unavailable when it fails."""
    from lightagentd.host.process import run

    names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "HOME")
    env = {name: os.environ[name] for name in names if name in os.environ}
    done = run_async(run(argv, timeout_s=_COMMAND_S, env=env))
    if check and done.status != 0:
        why = (done.stderr.text().strip().split("\n")[-1] or f"status {done.status}").rstrip(".")
        raise Unavailable(f"{argv[0]} failed: {why}.", suggestion=f"Try it yourself: {shlex.join(argv)}")
    return done.stdout.text().strip()
