"""lightagentd.toml(5), from the models of the configuration and the strings below their fields."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lightagentd.config.configuration import Config
from manual.roff import Page, Stamp, blocks, bold, italic, see_also

_DESCRIPTION = """\
The configuration of lightagentd(8) is TOML (https://toml.io). The daemon reads `lightagentd.toml` and
then the files of `lightagentd.toml.d` in the order of their names; a later file overrides an earlier
one, key by key. None of them has to exist: without them the defaults below hold, and the embedded model
`runbook` answers.

A key that is not known, a value of the wrong type or out of range is an error that names the file, the
line and, for a key, the nearest one that is known. With an error the daemon does not start (exit status
78), and a reload changes nothing. Below /etc, a file or its folder that others than root can write is
refused.

    lactl config check      would the daemon take these files?
    lactl config show       what is in force, and what file it is from
    systemctl reload lightagentd

A reload takes up agents, skills, tools, rules, models and budgets at once; it names the sections of this
file that wait for a restart. An agent whose models changed gets them when none of its turns runs, else at
the next reload; one whose models cannot be made any more, for example because a key file is gone, keeps
those that it has, and lactl status says so.

A model is written PROVIDER/MODEL. A provider is a section `[models.providers.NAME]`; or it is known by its
name: openai, anthropic, openrouter, deepseek, alibaba and alibaba-cn (Qwen), zai and zhipuai (GLM),
moonshotai and moonshotai-cn (Kimi), mistral, groq, xai, google (Gemini), togetherai, cerebras,
fireworks-ai, which need a key alone, and on this machine ollama, llamacpp, lmstudio, vllm and litellm, at
the ports where they usually listen. What runs on this machine is shown by lactl models list and lactl
doctor, and never used unless a model string names it.

    [models.providers.deepseek]
    api_key_file = "lightagentd.deepseek"

A provider needs no section at all when the environment has its key; see ENVIRONMENT. What this file says
wins. A key goes only to an address from the same place: that of a section to its base_url, that of a
variable to the address in the variable beside it, or else to the one that is known by its name.

A call that fails in a way that may pass (no connection, no answer in time, a status of 408, 409, 425, 429
or 500 and above) is made again, up to max_retries times and max_retry_s seconds of waiting, and never once
a word of its answer was delivered. What an endpoint asks for in Retry-After is waited for, or not at all.
Then the next model of the agent's `fallback` answers, and at last what `models.fallback` names, if the
endpoint is down; the answer says at its end which model gave it, and why. An endpoint that failed five
times in a row, in two turns at least, is left alone for 30 seconds and more: calls fail at once until one
that tries it has an answer. When its answers were errors, that is so only for the models that they were
for. `lactl models test` tries a model now, and `lactl doctor --models` every endpoint.

A model on your own machine often has a small window. Say how large it is with `context_tokens`: some
servers, Ollama among them, leave out the beginning of what is too long and do not say so. Functions are
then chosen by the prompt, so that they take no more than a third of it; `lactl tools select --agent NAME
PROMPT` shows which.

With `record` every exchange with a model is written to a file of its own, without secrets, readable by
the daemon's user alone; nothing removes these files. A provider of the kind `replay` answers from them:

    [models.providers.yesterday]
    kind = "replay"
    recording = "/var/lib/lightagentd/recording"

A client of your own (`kind = "module:Class"`) is a class that the daemon can import, from its PYTHONPATH.
It is made with the settings of its provider, runs in the daemon's event loop with all that the daemon may
do, and must not block. What it gives back is checked, and what it raises ends the call and nothing else.

Budgets (`[budgets.SCOPE]`) are checked before each model call, tool calls also before each of them. A turn
that finds one used up ends there, with exit status 79 of lactl and the event `budget.exceeded`; no other
model is asked. What was used is stored with each model call, so that a restart resets nothing; days are
those of UTC. A call whose tokens the endpoint does not count, or whose price is not known, counts as
a step alone. `lactl usage --budgets` shows the limits, and how much of each is used.

A conversation that has become longer than `limits.compact_at` of the model's window (`context_tokens` of
its provider) is compacted: the older turns give way to a summary, which the model writes, or the daemon
where the model cannot. The newest turns stay, and the history keeps all of it.

The history is kept within the limits of `[history]`, by the hour and whenever `lactl history prune` asks.
What is older than they say goes, and the oldest of what makes it too large. Messages of sessions that exist
stay, and so does what a turn that has not ended needs, and for 30 days what `lactl undo` takes back. When
that is not enough, the sessions that are idle longest are deleted. An event says what went, and the chain
still verifies. Removed events leave free pages, which new events use; `lactl history compact` gives them
back to the disk, and the daemon does that by itself with a file of more than 256 MiB that is half empty."""
_CREDENTIALS = """\
Keys and passwords never stand in these files. `api_key_file` names a file with the key and nothing else,
which the user lightagent must be able to read; or, as a bare name without a slash, a credential of the
unit. The unit takes every credential whose name begins with `lightagentd.` from the usual places, encrypted
or not (systemd-creds(1), systemd.exec(5)):

    systemd-ask-password -n | systemd-creds encrypt \\
        --name=lightagentd.work - \\
        /etc/credstore.encrypted/lightagentd.work

The configuration then says:

    [models.providers.work]
    base_url = "https://llm.example.org/v1"
    api_key_file = "lightagentd.work"

`api_key_env` names a variable of the daemon's environment instead. The unit takes variables from the file
`/etc/lightagentd/environment`, if there is one: systemd reads it, so that it may be root's alone
(chmod 600). A credential is better, because other processes of the same user can read an environment. A key
never reaches a worker, the history or the journal.

Secrets are taken out of prompts, arguments, output, answers and errors before they are stored, logged,
sent to a model or to a client: every file in $CREDENTIALS_DIRECTORY and the keys of the providers by
value, also in Base64, in hexadecimal and percent-encoded; well-known key formats; password hashes; and
what stands beside words such as password, token or Authorization. In their place stands a mark with the
kind and a keyed digest, such as `[removed: github-token 5f3a91c2]`: equal secrets have equal marks. A
call runs with what the model wrote all the same, and whoever is asked whether a call may run sees all of
it. What has no such look, such as a password in the middle of a sentence about something else, cannot be
told and stays."""
_ENVIRONMENT = (
    ("LIGHTAGENT_CONFIG_DIR", "Read the configuration here instead of in /etc/lightagentd."),
    ("LIGHTAGENT_STATE_DIR", "Keep the state here instead of in /var/lib/lightagentd."),
    ("LIGHTAGENT_RUNTIME_DIR", "Make the sockets here instead of in /run/lightagentd."),
    ("CONFIGURATION_DIRECTORY, STATE_DIRECTORY", "The same, as systemd.exec(5) sets them."),
    ("CREDENTIALS_DIRECTORY", "Where credentials lie; systemd sets it."),
    (
        "OPENAI_API_KEY, OPENAI_BASE_URL",
        "A provider openai without any configuration; without OPENAI_BASE_URL it is OpenAI itself.",
    ),
    (
        "ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL",
        "A provider anthropic. Other endpoints that are known by their names have such a variable for the"
        " key, too: OPENROUTER_API_KEY, DEEPSEEK_API_KEY, DASHSCOPE_API_KEY, ZAI_API_KEY, ZHIPU_API_KEY,"
        " MOONSHOT_API_KEY, MISTRAL_API_KEY, GROQ_API_KEY, XAI_API_KEY, GEMINI_API_KEY, TOGETHER_API_KEY,"
        " CEREBRAS_API_KEY, FIREWORKS_API_KEY.",
    ),
    (
        "API_KEY, BASE_URL, MODEL",
        "A provider env for any other endpoint, and its model as the default. API_KEY may be missing where"
        " the endpoint wants none. The address may end in /chat/completions, /responses or /v1/messages,"
        " which says what it speaks. MODEL is the default beside OPENAI_API_KEY or ANTHROPIC_API_KEY as well."
        " For a user's own daemon these variables, and those above, may also stand in a file .env in the"
        " folder that it is started in: lines NAME=VALUE, in a file of that user that nobody else can write.",
    ),
    ("https_proxy, http_proxy, no_proxy", "The proxy towards the endpoints of models."),
)
_FILES = (
    ("/etc/lightagentd/lightagentd.toml", "The main file."),
    ("/etc/lightagentd/lightagentd.toml.d/*.toml", "What overrides it, in the order of the names."),
    (
        "/etc/lightagentd/agent/",
        "Agents, and what makes their system prompts: SOUL.md, USER.md, MEMORY.md, users/NAME/;"
        " lightagentd(8).",
    ),
    ("~/.config/lightagentd/", "Both, for the daemon that an ordinary user runs."),
)
_EXAMPLE = """\
[limits]
max_steps = 60
approval_timeout_s = 900

[worker]
web_allow = ["intranet.example.org", "10.1.0.0/16"]

[models]
default = "work/some-model"

[models.providers.work]
base_url = "https://llm.example.org/v1"
api_key_file = "lightagentd.work"
context_tokens = 200000

[models.prices."work/some-model"]
prompt = 3.0
completion = 15.0

[budgets.owner_day]
tokens = 2000000
cost = 10.0"""
_NAMED = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", Path: "a path"}


def page(stamp: Stamp) -> str:
    """The page as roff."""
    made = Page("lightagentd.toml", 5, "File formats", "configuration of the agent daemon", stamp)
    made.section("SYNOPSIS")
    made.raw(italic("/etc/lightagentd/lightagentd.toml"))
    made.raw(".br")
    made.raw(italic("/etc/lightagentd/lightagentd.toml.d/*.toml"))
    made.section("DESCRIPTION")
    made.prose(_DESCRIPTION)
    made.section("SECTIONS")
    for table, model in sections(Config):
        made.subsection(f"[{table}]")
        lead = inspect.cleandoc(model.__doc__ or "").partition(":")[2].strip()
        if lead:
            made.paragraph(lead[0].upper() + lead[1:])
        docs = field_docs(model)
        for name, info in model.model_fields.items():
            if section_of(info) is None:
                kind = "seconds" if name.endswith("_s") else _type_name(info.annotation)
                made.item(f"{bold(name)} = {italic(kind)}", f"{docs[name]}\n\n{_facts(info)}")
    made.section("CREDENTIALS")
    made.prose(_CREDENTIALS)
    made.section("ENVIRONMENT")
    for name, text in _ENVIRONMENT:
        made.item(bold(name), text)
    made.section("FILES")
    for name, text in _FILES:
        made.item(italic(name), text)
    made.section("EXAMPLES")
    made.example(_EXAMPLE.splitlines())
    made.section("SEE ALSO")
    made.raw(see_also("lightagentd.toml", "systemd-creds(1)", "systemd.exec(5)"))
    return made.text()


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of the configuration by its name in TOML, and the model that declares its keys."""
    for name, info in model.model_fields.items():
        inner = section_of(info)
        if inner is not None:
            table = f"{prefix}{name}{'.NAME' if get_origin(info.annotation) is dict else ''}"
            yield table, inner
            yield from sections(inner, f"{table}.")


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model behind a key that is a table, or a table of named tables."""
    for one in (info.annotation, *get_args(info.annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field in the source; a missing one is an error."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            text = inspect.cleandoc(following.value.value)
            found[statement.target.id] = "\n\n".join(" ".join(block) for block in blocks(text))
    tables = {name for name, info in model.model_fields.items() if section_of(info) is not None}
    if missing := model.model_fields.keys() - found.keys() - tables:
        raise SystemExit(f"{model.__name__}: no string below the field {', '.join(sorted(missing))}")
    return found


def _type_name(annotation: Any) -> str:
    if annotation is Any:
        return "anything"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in args)
    if origin is list:
        return f"a list, each {_type_name(args[0])}"
    if origin is dict:
        return f"a table, each value {_type_name(args[1])}"
    if origin is Union or type(None) in args:
        return _type_name(next(one for one in args if one is not type(None)))
    if args and isinstance(args[0], type):  # Annotated
        return _type_name(args[0])
    return _NAMED.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _facts(info: FieldInfo) -> str:
    """Default and range, as a sentence."""
    facts = []
    if info.is_required():
        facts.append("Has to be there.")
    else:
        default = info.get_default(call_default_factory=True)
        if isinstance(default, Path):
            default = str(default)
        facts.append("Not set by default." if default is None else f"Default: {_value(default)}.")
    low = next((f"at least {one.ge}" for one in info.metadata if hasattr(one, "ge")), "")
    low = low or next((f"more than {one.gt:g}" for one in info.metadata if hasattr(one, "gt")), "")
    high = next((f"at most {_number(one.le)}" for one in info.metadata if hasattr(one, "le")), "")
    if low or high:
        text = " and ".join(part for part in (low, high) if part)
        facts.append(f"{text[0].upper()}{text[1:]}.")
    return " ".join(facts)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)
