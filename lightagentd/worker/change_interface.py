"""The part of a worker's interface that a worker for change has, which believes no word of the daemon.

It is what an honest daemon needs of such a worker and no more: it describes nothing, looks at nothing but
what it has kept itself, and loads no file that is not root's. It says of each call in its own name that it
begins and how it ended (`witness`).
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod

from lightagentd.errors import Conflict, LightagentError, PermissionDenied
from lightagentd.events.context import EventContext
from lightagentd.tool import Action, Args, Effect
from lightagentd.varlink.server import error_reply
from lightagentd.worker.call import OWN_PREVIEWS
from lightagentd.worker.calls import LAST, CallContext, check_args
from lightagentd.worker.interface import checked_reply
from lightagentd.worker.loader import LoadedTool
from lightagentd.worker.needs_input import going_on
from lightagentd.worker.verifying import Permit, Verifier, checked_call

if TYPE_CHECKING:
    from lightagentd.worker.program import Worker


class ChangeInterface(VarlinkInterface, name="org.lightagent1.Worker"):
    """The interface of a worker that believes nothing of what the daemon says (`verifying`)."""

    def __init__(self, worker: "Worker", verifier: Verifier) -> None:
        self._worker, self._verifier = worker, verifier

    @varlinkmethod(allow_foreign=True)
    async def Retire(self) -> None:
        """Exit, so that the next connection to a unit's socket starts a worker with the current files."""
        self._worker.retired.set()

    @varlinkmethod(allow_foreign=True)
    async def Settle(self, *, call_id: str) -> None:
        """Answer when this call runs no more: after a hang-up, when what it ended is gone."""
        await self._worker.settle(call_id)

    @varlinkmethod(allow_foreign=True)
    async def Keep(self, *, call_id: str) -> None:
        """Take the change of this call back no more: somebody has confirmed it."""
        try:
            self._verifier.keep(call_id)
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(return_parameter="checked", allow_foreign=True)
    async def Check(
        self,
        *,
        tool: str,
        action: str,
        args: Any,
        agent: str,
        session: str,  # noqa: ARG002 - the daemon's word
        owner: int,
        preview: bool,
        kit: str,  # noqa: ARG002
        context: Any,  # noqa: ARG002
    ) -> Any:
        """What a call would do, of the few that show what this worker alone has kept."""
        try:
            if (tool, action) not in OWN_PREVIEWS or not preview or agent != self._verifier.agent:
                raise PermissionDenied(f"The worker for change looks at nothing for {tool}.{action}.")
            found, loaded = self._find(tool, action, "")
            checked = check_args(found, args)
            seen = await self._worker.preview(found, loaded.tool, checked, agent, "", owner)
        except LightagentError as err:
            raise error_reply(err) from err
        return checked_reply(checked, seen)

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Call(self, *, call: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002 - as above
        """Run a `call.Call`, or go on with it, if it is permitted. Streams as the other one does."""
        worker, verifier = self._worker, self._verifier
        try:
            found, checked, permit = await self._permitted(call)
            asked = permit.call
            whose = EventContext(agent=asked.agent, session=asked.session, owner=asked.owner)
            if asked.resumed is not None:
                found = going_on(found, asked.resumed["state"], asked.resumed["answer"])
            ended = "cancelled"
            try:
                running = CallContext(
                    call_id=asked.call_id,
                    agent=asked.agent,
                    session=asked.session,
                    owner=asked.owner,
                    effect=asked.effect,
                    scratch=worker.make_scratch(asked.call_id),
                    timeout_s=asked.timeout_s,
                    expected=permit.expected | permit.given,
                )
                async for event in worker.run(found, checked, running, whose):
                    if event["kind"] in LAST:
                        verifier.ended(permit, event)
                        ended = "ok" if event["kind"] == "result" else event["kind"]
                        raise LastResult(event)
                    yield event
            except LightagentError as err:
                ended = err.code
                raise
            finally:
                await verifier.tell_ended(permit, ended)
        except LightagentError as err:
            raise error_reply(err) from err

    async def _permitted(self, call: Any) -> tuple[Action, Args, Permit]:
        """A call that may run now. Raises what `Verifier.permit` raises, and tells of it."""
        worker, verifier = self._worker, self._verifier
        try:
            asked = checked_call(call, verifier.agent)
            if worker.runs(asked.call_id):
                raise Conflict(f"The call {asked.call_id} runs already.")
            found, loaded = self._find(asked.tool, asked.action, asked.kit)
            checked = check_args(found, asked.args)

            async def before() -> dict[str, Any]:
                seen = await worker.preview(found, loaded.tool, checked, asked.agent, "", asked.owner)
                return seen.expected if seen is not None else {}

            permit = await verifier.permit(asked, found, checked.model_dump(mode="json"), loaded, before)
        except LightagentError as err:
            await verifier.tell_refused(call, err)
            raise
        return found, checked, permit

    def _find(self, tool: str, action: str, kit: str) -> tuple[Action, LoadedTool]:
        """Raises ToolNotFound, PermissionDenied."""
        self._verifier.check_place(tool, kit, self._worker.tools)
        found = self._worker.find(tool, action, kit, Effect.CHANGE)
        return found, self._worker.loaded(tool, kit, Effect.CHANGE)
