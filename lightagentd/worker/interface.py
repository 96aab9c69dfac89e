"""The Varlink interface of a worker: what the daemon asks of it."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod

from lightagentd.errors import LightagentError
from lightagentd.events.context import EventContext, using
from lightagentd.tool import Args, Preview
from lightagentd.varlink.server import error_reply
from lightagentd.worker.call import Call
from lightagentd.worker.calls import LAST, CallContext, check_args, describe
from lightagentd.worker.needs_input import going_on

if TYPE_CHECKING:
    from lightagentd.worker.program import Worker


def checked_reply(checked: Args, seen: Preview | None) -> dict[str, Any]:
    """What `Check` gives."""
    return {
        "args": checked.model_dump(mode="json"),
        "preview": seen.text if seen else "",
        "expected": seen.expected if seen else {},
    }


class WorkerInterface(VarlinkInterface, name="org.lightagent1.Worker"):
    """The interface of a worker for the daemon."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker

    @varlinkmethod(return_parameter="tools", allow_foreign=True)
    async def Describe(self) -> list[Any]:
        """The tools that were loaded, and the files that were not."""
        return [describe(loaded) for loaded in self._worker.tools.values()]

    @varlinkmethod(return_parameter="tool", allow_foreign=True)
    async def DescribeOwn(self, *, kit: str, tool: str) -> Any:
        """One tool of the kit in this folder, loaded or not. It may end this worker."""
        try:
            return describe(self._worker.loaded(tool, kit))
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(allow_foreign=True)
    async def Retire(self) -> None:
        """Exit, so that the next connection to a unit's socket starts a worker with the current files."""
        self._worker.retired.set()

    @varlinkmethod(return_parameter="possible", allow_foreign=True)
    async def Prove(self) -> list[Any]:
        """What a command of this worker can do that its effect forbids (see `proof`)."""
        try:
            return await self._worker.prove()
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(return_parameter="survey", allow_foreign=True)
    async def Survey(self, *, owner: int, files: bool) -> str:
        """All processes as JSON, for the script of a skill (`toolkit.proc.survey`)."""
        from lightagentd.toolkit.proc.survey import survey  # few workers run one

        try:
            if self._worker.admission is not None:
                self._worker.admission.survey(owner)
        except LightagentError as err:
            raise error_reply(err) from err
        return await asyncio.to_thread(survey, owner, files=files)

    @varlinkmethod(allow_foreign=True)
    async def Settle(self, *, call_id: str) -> None:
        """Answer when this call runs no more: after a hang-up, when what it ended is gone."""
        await self._worker.settle(call_id)

    @varlinkmethod(return_parameter="checked", allow_foreign=True)
    async def Check(
        self,
        *,
        tool: str,
        action: str,
        args: Any,
        agent: str,
        session: str,
        owner: int,
        preview: bool,
        kit: str,
        context: Any,
    ) -> Any:
        """The arguments as the action would get them, and, when asked for, what the call would do."""
        try:
            with using(EventContext.from_wire(context, agent=agent, session=session, owner=owner)):
                found = self._worker.find(tool, action, kit)
                checked = check_args(found, args)
                owning = self._worker.loaded(tool, kit).tool if preview else None
                seen = await self._worker.preview(found, owning, checked, agent, session, owner)
        except LightagentError as err:
            raise error_reply(err) from err
        return checked_reply(checked, seen)

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Follow(self) -> AsyncIterator[Any]:
        """What tools publish outside of calls, as it comes and without an end.

        Objects {kind: event, topic, type, data}, and {kind: lost, count} where the daemon was too slow.
        """
        async for event in self._worker.published.follow():
            yield event

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Call(self, *, call: Any, context: Any) -> AsyncIterator[Any]:
        """Run a `call.Call`, or go on with it. Streams objects of the kinds output, event, result, asked."""
        try:
            asked = Call.of(call)
            whose = EventContext.from_wire(
                context, agent=asked.agent, session=asked.session, owner=asked.owner
            )
            found = self._worker.find(asked.tool, asked.action, asked.kit, asked.effect)
            checked = check_args(found, asked.args)
            if (admission := self._worker.admission) is not None:
                sha256 = self._worker.loaded(asked.tool, asked.kit).sha256
                admission.call(asked, checked.model_dump(mode="json"), sha256)
            if asked.resumed is not None:
                found = going_on(found, asked.resumed["state"], asked.resumed["answer"])
            running = CallContext(
                call_id=asked.call_id,
                agent=asked.agent,
                session=asked.session,
                owner=asked.owner,
                effect=asked.effect,
                scratch=self._worker.make_scratch(asked.call_id),
                timeout_s=asked.timeout_s,
                expected=asked.expected | asked.given,
            )
            async for event in self._worker.run(found, checked, running, whose):
                if event["kind"] in LAST:
                    raise LastResult(event)
                yield event
        except LightagentError as err:
            raise error_reply(err) from err
