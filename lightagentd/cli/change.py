"""`lactl change`: the profiles that narrow what an agent's worker for change may do on this machine.

It writes a drop-in of systemd itself, as root: the daemon can neither narrow nor widen a worker.
"""

from __future__ import annotations

import os
import re
from typing import Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.options import Command, Listing, Settings, agent_names, lists
from lightagentd.cli.output import Columns, listing, told
from lightagentd.errors import InvalidArgument, PermissionDenied, StorageError
from lightagentd.text.agent_name import NAME
from lightagentd.text.reason import reason
from lightagentd.worker import change_profiles

_AGENT = re.compile(rf"{NAME.pattern}(?:\.{NAME.pattern})?")
_COLUMNS: Columns = {"AGENT": "agent", "PROFILE": lambda one: one["profile"] or "none", "FILE": "file"}


@click.group("change", cls=Listing)
@click.pass_context
def command(context: click.Context) -> None:
    """Narrow what the workers for change may do, each to services, files or packages."""
    if lists(context):
        context.invoke(list_profiles)


@command.command("list", cls=Command)
@click.pass_obj
def list_profiles(settings: Settings) -> None:
    """List the agents with a worker for change, and the profile of each.

    The columns: agent, profile, and its file. 'none' is all of root's rights, unless another drop-in takes
    some away; 'altered' is a file that is no profile of this version.
    """
    _require_here(settings)
    try:
        found = [
            {
                "agent": agent,
                "profile": profile,
                "file": str(change_profiles.drop_in(agent)) if profile else "",
            }
            for agent in change_profiles.agents()
            for profile in [change_profiles.chosen(agent)]
        ]
    except OSError as err:
        raise PermissionDenied(f"The drop-ins cannot be read: {reason(err, at=True)}.") from err
    none = (
        "No agent has a worker for change. Give it one: systemctl enable --now lightagent-change@AGENT.socket"
    )
    listing(settings, found, _COLUMNS, spare=("FILE",), empty=none)


@command.command("narrow", cls=Command)
@click.argument("agent", shell_complete=agent_names)
@click.argument("profile", type=click.Choice(change_profiles.NAMES))
@click.pass_obj
def narrow(settings: Settings, agent: str, profile: str) -> None:
    """Leave an agent's worker for change only what a profile allows. For root.

    \b
      services   starts, stops, reloads, enables units
      files      writes /etc, /srv, /opt, /usr/local, /var/www; no network
      packages   installs and removes packages, with the network

    None can mount, load modules, trace processes or see homes. 'services' and 'packages' keep mistakes
    small: systemd does more than the worker may when it is asked, and packages bring units. The worker starts
    anew, and a call that runs in it ends. The profile is a drop-in, 50-profile.conf, of
    lightagent-change@AGENT.service; systemd-analyze(1) security shows what is left.
    """
    _require_root(settings, agent)
    try:
        path = change_profiles.lay(agent, profile)
    except OSError as err:
        raise StorageError(f"The profile cannot be laid: {reason(err, at=True)}.") from err
    _apply(agent)
    found = {"agent": agent, "profile": profile, "file": str(path)}
    told(
        settings,
        found,
        f"{agent} is narrowed to {profile}: {change_profiles.described(profile)}",
        agent,
        profile,
    )


@command.command("widen", cls=Command)
@click.argument("agent", shell_complete=agent_names)
@click.pass_obj
def widen(settings: Settings, agent: str) -> None:
    """Take an agent's profile away: its worker for change has all of root's rights again. For root."""
    _require_root(settings, agent)
    try:
        had = change_profiles.remove(agent)
    except OSError as err:
        raise StorageError(f"The profile cannot be removed: {reason(err, at=True)}.") from err
    if had:
        _apply(agent)
    sentence = f"{agent} has no profile any more." if had else f"{agent} had no profile."
    told(settings, {"agent": agent, "profile": "", "widened": had}, sentence, agent, "none")


def _require_here(settings: Settings) -> None:
    if settings.host:
        raise click.UsageError(f"This works on the machine itself: ssh -t {settings.host} lactl change …")


def _require_root(settings: Settings, agent: str) -> None:
    _require_here(settings)
    if not _AGENT.fullmatch(agent):
        raise InvalidArgument(f"{agent[:60]!r} is no name of an agent.", field="agent")
    if os.geteuid() != 0:
        raise PermissionDenied("Only root narrows or widens a worker.", suggestion="Run it with sudo.")


def _apply(agent: str) -> None:
    """Have systemd read the drop-ins and start the worker anew, if it runs. Raises the errors of the bus."""
    from lightagentd.bus.connection import connect
    from lightagentd.worker import jobs

    async def apply() -> Any:
        async with connect("system") as bus:
            await bus.call(*jobs.SYSTEMD, "Reload")
        await jobs.job("TryRestartUnit", change_profiles.unit(agent))

    run_async(apply())
