"""`lactl reload`: have the daemon read its files again."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import as_json, say, warn
from lightagentd.errors import ConfigError


@click.command("reload", cls=Command)
@click.pass_obj
def command(settings: Settings) -> None:
    """Have the daemon read its files again.

    That is the configuration, the rules of policy.d, agents, skills and tools, as with 'systemctl reload
    lightagentd'. Prints what is in force now and what needs a restart; files that could not be read are
    told on standard error. The exit status is 78 when the configuration or the rules are broken: then the old
    ones stay in force.
    """
    found = settings.call("Manager.Reload", timeout_s=None)
    refused = found["refused"]
    if not as_json(settings, found):
        for text in found["applied"]:
            say(f"applied\t{text}")
        for text in found["needs_restart"]:
            say(f"needs restart\t{text}")
        for text in found["problems"]:
            if text not in refused:
                warn(text)
    if refused:
        raise ConfigError(
            " ".join(refused), suggestion="Mend them ('lactl policy check' looks), then reload."
        )
