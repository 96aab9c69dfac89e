"""Completion of lactl in bash, zsh and fish, from the commands of click.

The scripts are files that run no Python: a shell that asks a program at each Tab would wait for it. Only the
names of agents and the ids of approvals, inputs and sessions come from the daemon, with `lactl agents list`
and the like.
"""

from __future__ import annotations

import shlex

import click

from lightagentd.cli.approvals import approval_ids
from lightagentd.cli.inputs import input_ids
from lightagentd.cli.options import agent_names
from lightagentd.cli.session_name import session_ids
from manual.tree import Command, commands, find, metavar, value, words

_HEAD = "# Completion of lactl(1) in {name}. Generated from the code; do not edit.\n"
_FROM_DAEMON = {
    agent_names: "agents",
    approval_ids: "approvals",
    input_ids: "inputs",
    session_ids: "sessions",
}
_LIST = "lactl {} list 2>/dev/null </dev/null | cut -f1"
_BASH = """\
_lactl()
{
    local cur=${COMP_WORDS[COMP_CWORD]} path= wants= given=0 word name i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ -n $wants ]]; then
            wants=
            continue
        fi
        case "$path $word" in
            @COMMANDS@) path+=" $word" ;;
@TAKING@
            *" "-*) ;;
            *) given=$((given + 1)) ;;
        esac
    done
    if [[ -n $wants ]]; then
        :
    elif [[ $cur == -* ]]; then
        case "$path" in
@OPTIONS@
        esac
    else
        case "$path $given" in
@ARGUMENTS@
        esac
    fi
    case $wants in
        nothing | "") ;;
        files)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            ;;
        agents | approvals | inputs | sessions)
            while read -r name; do
                if [[ $name == "$cur"* ]]; then COMPREPLY+=("$name"); fi
            done < <(lactl "$wants" list 2>/dev/null </dev/null | cut -f1)
            ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$wants" -- "$cur") ;;
    esac
}

complete -F _lactl lactl
"""
_FISH = """\
function __lactl_at --description 'whether the command so far is this one'
    set -l path
    set -l is_value 0
    for word in (commandline -opc)[2..]
        if test $is_value = 1
            set is_value 0
            continue
        end
        switch "$path $word"
            case @COMMANDS@
                set path "$path $word"
            case @TAKING@
                set is_value 1
        end
    end
    test "$path" = "$argv[1]"
end

complete -c lactl -f
"""
_FILES = ("FILE", "PATH", "DIR", "[DIR|FILE]...", "DIR|FILE...")


def completes(param: click.Parameter, placeholder: str) -> str:
    """What the value of a parameter is completed with: a noun of lactl, files, its choices, or nothing."""
    custom = getattr(param, "_custom_shell_complete", None)
    if custom in _FROM_DAEMON:
        return _FROM_DAEMON[custom]
    if isinstance(param.type, click.Choice):
        return " ".join(str(choice) for choice in param.type.choices)
    return "files" if placeholder in _FILES else ""


def _arguments(command: Command) -> list[str]:
    """What each positional argument is completed with."""
    return [completes(one, metavar(one, command)) for one in command.arguments()]


def bash() -> str:
    """A script for /usr/share/bash-completion/completions."""
    every = list(commands())
    taking, options, arguments = [], [], []
    for command in every:
        for option in command.options(common=True):
            if placeholder := value(option, command):
                spelled = "|".join(_case(command, word) for word in words(option))
                taking.append(_bash_case(spelled, completes(option, placeholder) or "nothing"))
        known = (word for option in command.options(common=True) for word in words(option))
        options.append(_bash_case(_case(command), " ".join(known)))
        if command.is_group:
            inner = " ".join(one.path[-1] for one in find(command, every))
            arguments.append(_bash_case(_case(command, "0"), inner))
        for number, kind in enumerate(_arguments(command)):
            arguments.append(_bash_case(_case(command, str(number)), kind or "nothing"))
    names = "|".join(_case(one) for one in every[1:])
    script = _BASH.replace("@COMMANDS@", names)
    for mark, cases in (("@TAKING@", taking), ("@OPTIONS@", options), ("@ARGUMENTS@", arguments)):
        script = script.replace(mark, "\n".join(cases))
    return _HEAD.format(name="bash") + script


def _case(command: Command, *more: str) -> str:
    """The words of a command, and what follows, quoted for a shell."""
    return shlex.quote(" ".join(("", *command.path, *more)))


def _bash_case(pattern: str, wants: str) -> str:
    return f"            {pattern}) wants={shlex.quote(wants)} ;;"


def zsh() -> str:
    """A function for a folder of $fpath."""
    every = list(commands())
    lines = ["#compdef lactl", _HEAD.format(name="zsh")]
    for noun in _FROM_DAEMON.values():
        lines += [f"_lactl_names_{noun}() {{", "  local -a names"]
        lines += [f'  names=(${{(f)"$({_LIST.format(noun)})"}})', "  compadd -a names", "}", ""]
    for command in every:
        lines += [*_zsh_function(command, every), ""]
    lines += ['_lactl "$@"', ""]
    return "\n".join(lines)


def _zsh_function(command: Command, every: list[Command]) -> list[str]:
    specs = []
    for option in command.options(common=True):
        spelled = words(option)
        placeholder = value(option, command)
        action = (
            f":{_zsh_text(placeholder)}:{_zsh_action(completes(option, placeholder))}" if placeholder else ""
        )
        text = f"[{_zsh_text(option.help or '')}]{action}"
        group = f"({' '.join(spelled)})" if len(spelled) > 1 else ""
        specs += [shlex.quote(f"{group}{word}{text}") for word in spelled]
    name = "_".join(("_lactl", *command.path))
    if not command.is_group:
        for argument in command.arguments():
            shown = metavar(argument, command)
            place = "*" if argument.nargs == -1 else ""
            specs.append(shlex.quote(f"{place}:{_zsh_text(shown)}:{_zsh_action(completes(argument, shown))}"))
        return [f"{name}() {{", "  _arguments -s -S \\", *_continued(specs), "}"]
    inner = find(command, every)
    lines = [f"{name}() {{", "  local curcontext=$curcontext state line", "  local -a commands"]
    lines += ["  _arguments -C -s -S \\", *_continued([*specs, "'1: :->command'", "'*:: :->rest'"])]
    lines += ["  case $state in", "    command)", "      commands=("]
    lines += [f"        {shlex.quote(f'{one.path[-1]}:{one.summary}')}" for one in inner]
    lines += ["      )", f"      _describe -t commands {shlex.quote(command.name)} commands", "      ;;"]
    lines += ["    rest)", "      case $line[1] in"]
    lines += [f"        {one.path[-1]}) {'_'.join(('_lactl', *one.path))} ;;" for one in inner]
    return [*lines, "      esac", "      ;;", "  esac", "}"]


def _continued(specs: list[str]) -> list[str]:
    return [f"    {spec} \\" for spec in specs[:-1]] + [f"    {specs[-1]}"]


def _zsh_text(text: str) -> str:
    """Text inside a specification of _arguments, where brackets and colons have a meaning."""
    for char in "\\[]:":
        text = text.replace(char, f"\\{char}")
    return " ".join(text.split())


def _zsh_action(kind: str) -> str:
    if kind in _FROM_DAEMON.values():
        return f"_lactl_names_{kind}"
    return {"files": "_files", "": " "}.get(kind, f"({kind})")


def fish() -> str:
    """A script for /usr/share/fish/vendor_completions.d."""
    every = list(commands())
    names = " ".join(_case(one) for one in every[1:])
    taking = " ".join(
        _case(command, word)
        for command in every
        for option in command.options(common=True)
        if value(option, command)
        for word in words(option)
    )
    head = _FISH.replace("@COMMANDS@", names).replace("@TAKING@", taking)
    lines = [_HEAD.format(name="fish") + head]
    for command in every:
        here = f"complete -c lactl -n {shlex.quote(f'__lactl_at {_case(command)}')}"
        inner = find(command, every)
        lines += [f"{here} -a {one.path[-1]} -d {_fish_text(one.summary)}" for one in inner]
        lines += [f"{here} {_fish_option(option, command)}" for option in command.options(common=True)]
        lines += [f"{here} {_fish_values(kind)}" for kind in dict.fromkeys(_arguments(command)) if kind]
    return "\n".join([*lines, ""])


def _fish_option(option: click.Option, command: Command) -> str:
    found = [f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}" for word in words(option)]
    if placeholder := value(option, command):
        found += ["-r", _fish_values(completes(option, placeholder))]
    return " ".join([*(part for part in found if part), "-d", _fish_text(option.help or "")])


def _fish_values(kind: str) -> str:
    if kind in _FROM_DAEMON.values():
        return f"-a {shlex.quote(f'({_LIST.format(kind)})')}"
    return {"files": "-F", "": ""}.get(kind, f"-a {shlex.quote(kind)}")


def _fish_text(text: str) -> str:
    return "'" + " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'") + "'"
