"""The options of the command lightagentd, which are read before the daemon is imported."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightagentd import __version__
from lightagentd.errors import ConfigError, LightagentError
from lightagentd.host.paths import Paths, default_paths


def parsed() -> Paths:
    """The folders of the daemon. Exits after --help, --version and --check."""
    parser = argparse.ArgumentParser(
        prog="lightagentd",
        description="The agent daemon for Linux.",
        epilog="It runs in the foreground, as systemd wants it. Talk to it with lactl. SIGHUP has it read "
        "its files again, SIGUSR1 is the emergency stop of 'lactl panic'.",
    )
    parser.add_argument("--version", action="version", version=f"lightagentd {__version__}")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="instead of /var/lib/lightagentd")
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="instead of /run/lightagentd")
    parser.add_argument("--check", action="store_true", help="read configuration and rules, and end")
    options = parser.parse_args()
    defaults = default_paths()
    paths = Paths(
        config=(options.config_dir or defaults.config).absolute(),
        state=(options.state_dir or defaults.state).absolute(),
        runtime=(options.runtime_dir or defaults.runtime).absolute(),
    )
    if options.check:
        sys.exit(_check(paths))
    return paths


def _check(paths: Paths) -> int:
    """Read what a start and a reload refuse when it is broken; returns the exit status."""
    from lightagentd.config.configuration import load
    from lightagentd.policy.rulefiles import POLICY_FOLDER, load_texts, read_files, rule_files

    try:
        load(paths.config)
        load_texts(read_files(rule_files(paths.config / POLICY_FOLDER)))
    except ConfigError as err:
        told(err)
        return err.exit_status
    return 0


def told(err: LightagentError | OSError) -> str:
    """What an error says, which is on standard error then."""
    suggestion = getattr(err, "suggestion", "")
    said = f"{err}{' ' + suggestion if suggestion else ''}"
    sys.stderr.write(f"lightagentd: {said}\n")
    return said
