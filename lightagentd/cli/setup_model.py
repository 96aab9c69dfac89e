"""The model step of `lactl setup`: what models there are, and putting one into the configuration.

It writes a drop-in of its own, `lightagentd.toml.d/50-setup.toml`, and for a key a file in `keys/`; never
a file that a person wrote or changed. The daemon tries a model (`Models.Test`) before it becomes the
default; when that fails, all is as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.models import TEST_TIMEOUT_S
from lightagentd.cli.named_file import read_file
from lightagentd.cli.options import Settings
from lightagentd.config.configuration import Config, load, parse_toml, read_text
from lightagentd.config.models import wrong_model, wrong_url
from lightagentd.errors import (
    ConfigError,
    Conflict,
    DaemonUnreachable,
    InvalidArgument,
    LightagentError,
    PermissionDenied,
    StorageError,
)
from lightagentd.host.atomic_file import whole_file
from lightagentd.host.paths import ENVIRONMENT_FILE
from lightagentd.llm.environment import Environment, read_environment
from lightagentd.llm.local import LocalServer, found_at, found_locally
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.llm.providers import KNOWN, RUNBOOK, known_provider, unconfigured
from lightagentd.text.readable import visible

OWN = Path("lightagentd.toml.d/50-setup.toml")
KEYS = Path("keys")
_CREDENTIALS = (Path("/etc/credstore.encrypted"), Path("/etc/credstore"))
_CREDENTIAL = "lightagentd."
_HEAD = "# Written by 'lactl setup'. When you change this file, it is yours: setup then leaves it alone.\n"
_OURS = " in your environment"
_KEY_BYTES = 16 << 10
_SHOWN_MODELS = 3
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
"""A provider, which names a file."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model to set, and `where` it was found. `key_file` is a file, `-`, or the name of a credential; `key`
    was typed.
    """

    model: str
    base_url: str = ""
    key_file: str = ""
    key: str = field(default="", repr=False)
    tests: bool = True
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is there: the configuration, servers, and by provider where its key is (never the key)."""

    folder: Path
    config: Config
    origins: Mapping[str, Path]
    servers: list[LocalServer]
    keys: dict[str, str]
    variables: Environment = field(repr=False)
    """Of this process, not of the daemon."""
    running: str
    """The default model of the daemon, whose environment may name it; empty when it does not answer."""

    @property
    def default(self) -> str:
        return self.running or self.config.models.default

    def candidates(self) -> list[Wanted]:
        """Models of servers first, those for embedding last; then the newest ones of providers with a key."""
        local = [
            Wanted(model=model, where=server.base_url, base_url=server.base_url if server.kind else "")
            for server in self.servers
            for model in server.model_strings
        ]
        local.sort(key=lambda one: "embed" in one.model)
        metadata = Metadata(self.config.models)
        remote = []
        for provider, where in self.keys.items():
            known = [one for one in metadata.known_of(provider) if one.tools and one.status != "deprecated"]
            known.sort(key=lambda one: one.released, reverse=True)
            remote += [Wanted(model=one.model, where=where) for one in known[:_SHOWN_MODELS]]
        return [*local, *remote]


def look(folder: Path, running: str) -> Surroundings:
    """What there is now. Raises ConfigError for a broken configuration."""
    config, origins = load(folder)
    variables = read_environment(os.environ)

    async def servers() -> list[LocalServer]:
        here, there = await asyncio.gather(found_locally(), found_at(config.models.look_at))
        return [*here, *(one for one in there if one.reached)]

    return Surroundings(
        folder=folder,
        config=config,
        origins=origins,
        servers=run_async(servers()),
        keys=_keys(folder, config, variables),
        variables=variables,
        running=running,
    )


def _keys(folder: Path, config: Config, variables: Environment) -> dict[str, str]:
    """By provider, where its key is: the configuration, the daemon's environment, a file, ours."""
    found = {
        name: str(where)
        for name, provider in config.models.providers.items()
        if (where := provider.api_key_file or provider.api_key_env)
    }
    file = folder / ENVIRONMENT_FILE
    daemons = read_environment({}, file) if os.access(file, os.R_OK) else Environment()
    for known in KNOWN:
        if known.keys and known.name not in config.models.providers:
            places = (
                folder / KEYS / known.name,
                *(one / f"{_CREDENTIAL}{known.name}" for one in _CREDENTIALS),
            )
            if variable := daemons.first(known.keys):
                found[known.name] = f"{variable} in {file}"
            elif place := next((one for one in places if one.exists()), None):
                found[known.name] = str(place)
            elif variable := variables.first(known.keys):
                found[known.name] = f"{variable}{_OURS}"
    return found


def check_writable(there: Surroundings, wanted: Wanted) -> None:
    """Raises PermissionDenied, with the command to run instead, where only root can write."""
    if not _is_writable(there.folder):
        raise PermissionDenied(
            f"Only root may write {there.folder}.", suggestion=f"Run: {again(wanted, there)}"
        )


def again(wanted: Wanted, there: Surroundings) -> str:
    """The command line that sets the same, if need be as root. Of a key only the place is in it."""
    known = known_provider(wanted.model.partition("/")[0])
    variable = there.variables.first(known.keys) if known is not None and not wanted.key_file else ""
    words = ["lactl", "setup", "--model", wanted.model]
    words += ["--base-url", wanted.base_url] if wanted.base_url else []
    words += ["--key-file", wanted.key_file or "-"] if wanted.key_file or wanted.key else []
    if not _is_writable(there.folder):
        words = ["sudo", *([f"--preserve-env={variable}"] if variable else []), *words]
    return shlex.join(words)


def _is_writable(folder: Path) -> bool:
    return os.access(next(one for one in (folder, *folder.parents) if one.exists()), os.W_OK)


def set_model(settings: Settings, there: Surroundings, wanted: Wanted) -> str:
    """Put a model in force; says what was done, or an empty string when nothing had to be. Raises
    LightagentError, and then everything is as it was.
    """
    name = _checked(there, wanted)
    before = _own(there.folder)
    section, key = _section(there, wanted, name, dict(before["providers"].get(name, {})))
    after = {**before, "providers": {**before["providers"], **({name: section} if section else {})}}
    if there.default == wanted.model and after == before and key is None:
        if wanted.tests:
            _try(settings, wanted.model)
        return ""
    own_key = there.folder / KEYS / name
    with _restored([there.folder / OWN, *([own_key] if key is not None else [])], settings):
        if key is not None:
            _write(own_key, key.encode() + b"\n", is_key=True)
        if wanted.tests:
            if after != before or key is not None:
                _put(there.folder, after, settings)
            _try(settings, wanted.model)
        _put(there.folder, {**after, "default": wanted.model}, settings, must=wanted.tests)
    return f"written to {there.folder / OWN}"


def _checked(there: Surroundings, wanted: Wanted) -> str:
    """The provider's name. Raises InvalidArgument, Conflict."""
    name = wanted.model.partition("/")[0]
    why = wrong_model(wanted.model)
    if not wanted.model.isprintable() or not _NAME.fullmatch(name):
        why = f"{visible(wanted.model[:80])} is no name that can be written"
    if why:
        raise InvalidArgument(f"--model: {why}.", suggestion="See: lactl models providers", field="model")
    if wanted.base_url and (why := wrong_url(wanted.base_url)):
        raise InvalidArgument(f"--base-url: {why}.", field="base_url")
    others = {
        path
        for key, path in there.origins.items()
        if key.startswith(f"models.providers.{name}.") and path != there.folder / OWN
    }
    if others and (wanted.base_url or wanted.key_file or wanted.key):
        raise Conflict(f"The provider {name} stands in {min(others)}.", suggestion="Change it there.")
    return name


def _section(
    there: Surroundings, wanted: Wanted, name: str, section: dict[str, str]
) -> tuple[dict[str, str], str | None]:
    """Our section of the provider, and the key to store, if there is one. Raises LightagentError."""
    if wanted.base_url:
        section["base_url"] = wanted.base_url
    known, configured = known_provider(name), (RUNBOOK, *there.config.models.providers)
    if known is None and name not in configured and not wanted.base_url:
        unconfigured(name, there.config.models, has_key=True)  # says that there is no address
    own, key = there.folder / KEYS / name, None
    if wanted.key_file or wanted.key:
        section["api_key_file"], key = _given(there.folder, wanted, own)
    elif known is not None and known.keys and known.name not in configured:
        where = there.keys.get(known.name, "")
        if where.endswith(_OURS):
            section["api_key_file"], key = str(own), there.variables.get(where.removesuffix(_OURS))
        elif where.startswith("/"):
            section["api_key_file"] = Path(where).name if Path(where).parent in _CREDENTIALS else where
        elif not where:
            raise InvalidArgument(
                f"There is no key for the provider {name}.",
                suggestion=f"Add --key-file FILE ('-' is standard input), or set {known.keys[0]}.",
                field="key_file",
            )
    if key is not None and (stored := _content(own)) is not None:
        if stored.decode(errors="replace").strip() == key:
            return section, None
        if _own(there.folder)["providers"].get(name, {}).get("api_key_file") != str(own):
            raise Conflict(f"{own} holds another key.", suggestion=f"Use it: --key-file {own}; or remove it.")
    return section, key


def _given(folder: Path, wanted: Wanted, own: Path) -> tuple[str, str | None]:
    """What api_key_file is to say, and the key to store for that: one that lies in `keys/` stays there."""
    name = wanted.key_file
    if name.startswith(_CREDENTIAL) and not Path(name).exists():
        return name, None
    if not wanted.key and name != "-" and Path(name).resolve().parent == (folder / KEYS).resolve():
        read_file(name, max_bytes=_KEY_BYTES)
        return str(folder / KEYS / Path(name).name), None
    key = wanted.key or read_file(name, max_bytes=_KEY_BYTES).decode("utf-8", "replace")
    if len(key.split()) != 1 or not key.strip().isascii() or not key.strip().isprintable():
        what = "What was typed" if wanted.key else name
        raise InvalidArgument(f"{what} is not a key: one word of ASCII.", field="key_file")
    return str(own), key.strip()


def _own(folder: Path) -> dict[str, Any]:
    """What our file sets. Raises Conflict when a person changed it, ConfigError."""
    path = folder / OWN
    if not os.path.lexists(path):
        return {"default": "", "providers": {}}
    text = read_text(path)
    models = parse_toml(text, path).get("models", {})
    found = {"default": models.get("default", ""), "providers": models.get("providers", {})}
    if _rendered(found) != text:
        raise Conflict(
            f"{path} was changed by hand, so it is left alone.",
            suggestion="Make the change there, or move the file away.",
        )
    return found


def _rendered(values: dict[str, Any]) -> str:
    """Our file. Strings of TOML 1.0 are those of JSON, for text that can be printed."""

    def set_to(key: str, value: str) -> str:
        return f"{key} = {json.dumps(value, ensure_ascii=False)}"

    lines = ["[models]", *([set_to("default", values["default"])] if values["default"] else [])]
    for name, section in values["providers"].items():
        lines += ["", f'[models.providers."{name}"]', *(set_to(key, value) for key, value in section.items())]
    return _HEAD + "\n".join(lines) + "\n"


def _put(folder: Path, values: dict[str, Any], settings: Settings, *, must: bool = True) -> None:
    """Write our file and have the daemon read it. Raises ConfigError, Conflict where another file sets the
    default again, and DaemonUnreachable if it `must` run.
    """
    _write(folder / OWN, _rendered(values).encode())
    config, origins = load(folder)
    if values["default"] not in ("", config.models.default):
        where = origins["models.default"]
        raise Conflict(f"{where} sets models.default too, and is read last.", suggestion="Change it there.")
    try:
        found = settings.call("Manager.Reload", timeout_s=None)
    except DaemonUnreachable:
        if must:
            raise
        return
    if found["refused"]:
        raise ConfigError(" ".join(found["refused"]), suggestion="Mend that, and run it again.")


def _try(settings: Settings, model: str) -> None:
    """Have the daemon make one real call. Raises its error."""
    if model == RUNBOOK:
        return
    try:
        settings.call("Models.Test", timeout_s=TEST_TIMEOUT_S, model=model)
    except LightagentError as err:
        err.message = f"{model} was tried, and nothing is changed: {err.message}"
        raise


@contextlib.contextmanager
def _restored(paths: list[Path], settings: Settings) -> Iterator[None]:
    """Put these files of ours back, and have the daemon read them, when the block fails."""
    kept = {path: _content(path) for path in paths}
    try:
        yield
    except BaseException:
        for path, content in kept.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                _write(path, content, is_key=path.parent.name == KEYS.name)
        with contextlib.suppress(LightagentError):
            settings.call("Manager.Reload", timeout_s=None)
        raise


def _content(path: Path) -> bytes | None:
    """What one of our files holds; None when there is none. No link is followed, which the daemon could put
    into its folder of keys. Raises StorageError.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read(_KEY_BYTES)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StorageError(f"{path} cannot be read: {err.strerror}.", suggestion="Look what it is.") from err


def _write(path: Path, content: bytes, *, is_key: bool = False) -> None:
    """Write one of our files whole: a key for the owner of its folder alone, else with the mode and the group
    of lightagentd.toml. Raises StorageError.
    """
    try:
        path.parent.mkdir(mode=0o700 if is_key else 0o755, parents=True, exist_ok=True)
        like = path.parent.stat()
        main = path.parent.with_name("lightagentd.toml")
        if not is_key:
            like = main.stat() if main.is_file() else like
        mode = 0o600 if is_key else stat.S_IMODE(like.st_mode) & 0o644
        with whole_file(path, mode=mode) as file:
            if os.geteuid() == 0:  # by the descriptor: in its folder of keys the daemon could put a link
                os.fchown(file.fileno(), like.st_uid if is_key else 0, like.st_gid)
            file.write(content)
    except OSError as err:
        raise StorageError(
            f"{path} cannot be written: {err.strerror}.", suggestion="Check its disk."
        ) from err
