"""A worker for change as its unit runs it, with the folders of a test: `python -m … BASE FD`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lightagentd.host.paths import share_folder
from lightagentd.tool import Effect
from lightagentd.worker import program
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.verifying import Verifier


def main(base: Path, fd: str) -> None:
    os.environ["LIGHTAGENT_UNDO"] = str(base / "state/undo")
    os.environ["LIGHTAGENT_SKILLS"] = str(base / "etc/skills")
    verifier = Verifier(
        "ops",
        state=base / "state",
        config=base / "etc",
        approver=base / "approver",
        journal=base / "journal",
    )
    tools = ["--tools", str(base / "etc/tools"), "--tools", str(share_folder() / "tools")]
    arguments = [*tools, "--scratch", str(base / "scratch"), "--listen-fd", fd]
    program.main(arguments, ends=Ends.CHILDREN, effect=Effect.CHANGE, verifier=verifier)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
