"""lightagent-notify.service: from what happens to what people are told."""

from __future__ import annotations

from lightagentd.host.paths import Paths
from tests.agents.asking import add, asking
from tests.agents.scripted import until
from tests.notify.receivers import Receiver
from tests.notify.rig import configured, notifying
from tests.scripted_model import call, say


async def test_an_approval_reaches_a_phone(paths: Paths) -> None:
    async with Receiver() as receiver:
        toml = f'[notify.to.phone]\nkind = "ntfy"\nurl = "{receiver.base}/topic"\n'
        config = configured(paths, toml)
        out = paths.state.parent / "out"
        async with asking(paths, [call("probe_add", add(out)), say("done")]) as it, notifying(paths, config):
            await it.agent.prompt(await it.session(), "go")
            await until(lambda: receiver.messages)
            print(receiver.messages)
            assert receiver.faults == []
