"""`lightagent-prompt@NAME.service`: asks what `/etc/lightagentd/prompts/NAME.toml` says, as its owner.

    agent = "ops"
    prompt = "check disk"
    owner = "carol"

The session is the owner's, so the program becomes that user, with their group and supplementary groups,
before it connects: the kernel then names them, and their rights count. The answer goes to the journal, to a
file that they can write, or to sendmail(8). Nobody is asked: a call that needs an approval is refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightagentd.config.triggers import PROMPT
from lightagentd.config.unattended import PROMPTS, PromptFile, load
from lightagentd.errors import LightagentError
from lightagentd.events.journal.journal_socket import SOCKET
from lightagentd.host.paths import default_paths
from lightagentd.text.reason import reason
from lightagentd.unattended import journal
from lightagentd.unattended.asking import Answer, Asker, run_until_told
from lightagentd.unattended.delivery import Delivery, check_target, deliver
from lightagentd.unattended.owner import become


def run(name: str, folder: Path, *, control: Path | None = None, journal_socket: Path = SOCKET) -> None:
    """Ask, and deliver the answer. Raises LightagentError."""
    prompt = load(folder, name)
    become(prompt.account(folder / PROMPTS / f"{name}.toml"))
    check_target(_unit(name), prompt)
    asker = Asker(control)
    correlation_id = f"prompt:{name}"

    async def ask() -> None:
        answer = await asker.ask(PROMPT + name, {}, correlation_id=correlation_id, timeout_s=prompt.timeout_s)
        await _deliver(name, prompt, answer, correlation_id, journal_socket)

    run_until_told(ask)


async def _deliver(
    name: str, prompt: PromptFile, answer: Answer, correlation_id: str, journal_socket: Path
) -> None:
    """Deliver the answer, and log the delivery in the journal."""
    fields = {**journal.fields_of(prompt.agent, answer, correlation_id), "LIGHTAGENT_PROMPT": name}
    if answer.refused:
        refused = ", ".join(dict.fromkeys(answer.refused))
        journal.enter(
            "prompt.refused",
            f"Nobody was there to allow what {prompt.whom} wanted to do, so it was refused: {refused}",
            priority=journal.NOTICE,
            fields=fields,
            socket=journal_socket,
        )
    said = answer.text
    if prompt.answer != "journal":
        about = {"agent": prompt.agent, "text": answer.text, "session": answer.session}
        delivery = Delivery(name=name, unit=_unit(name), **about)
        said = await deliver(prompt, delivery)
    journal.enter("prompt.answered", said, fields=fields, socket=journal_socket)


def _unit(name: str) -> str:
    return f"lightagent-prompt@{name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="lightagent-prompt",
        description="Ask an agent what a file below /etc/lightagentd/prompts says. It is what "
        "lightagent-prompt@NAME.timer starts.",
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="the file, without .toml")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="instead of /etc/lightagentd")
    options = parser.parse_args()
    try:
        run(options.name, options.folder or default_paths().config)
    except (LightagentError, OSError) as err:
        sys.stderr.write(
            f"<3>lightagent-prompt: {reason(err, at=True)}. {getattr(err, 'suggestion', '')}".rstrip() + "\n"
        )
        sys.exit(getattr(err, "exit_status", 71))  # EX_OSERR of sysexits.h


if __name__ == "__main__":
    main()
