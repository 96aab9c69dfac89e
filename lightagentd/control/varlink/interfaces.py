"""The Varlink interfaces, declared once: each method is one operation of the `Service`.

One instance of each interface is made for each connection, because it holds the caller, whom the kernel
named (`SO_PEERCRED`). The files in `packaging/varlink/` are generated from this module:
`python -m lightagentd.control.varlink.interfaces packaging/varlink`.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from asyncvarlink import (
    LastResult,
    TypedVarlinkErrorReply,
    VarlinkInterface,
    varlinkmethod,
)

from lightagentd import api, errors
from lightagentd.control.varlink.adapter import Adapter as _Adapter
from lightagentd.control.varlink.adapter import relay as _relay
from lightagentd.control.varlink.approvals import Approvals
from lightagentd.control.varlink.history import Events, History
from lightagentd.control.varlink.inputs import Inputs
from lightagentd.control.varlink.memory import Memory
from lightagentd.control.varlink.models import Models
from lightagentd.control.varlink.plans import Plans
from lightagentd.control.varlink.policy import Policy
from lightagentd.control.varlink.safety import SafetyMethods, Undo
from lightagentd.control.varlink.usage import Usage


def _error_classes() -> tuple[type[TypedVarlinkErrorReply], ...]:
    """One Varlink error for each row of the error table, all with the same parameters."""
    parameters = type(
        "Parameters", (), {"__annotations__": {"code": str, "message": str, "field": str, "suggestion": str}}
    )
    return tuple(
        type(
            row.varlink.rpartition(".")[2],
            (TypedVarlinkErrorReply,),
            {
                "__annotations__": {},
                "Parameters": parameters,
                "name": row.varlink,
                "__doc__": (row.cls.__doc__ or "").partition("\n\n")[0],
            },
        )
        for row in errors.table()
    )


class Errors(VarlinkInterface, name="org.lightagent1"):
    """The errors that every method of the other interfaces may answer with. message is one sentence
    that says what failed, suggestion what to do next, field names the parameter at fault.

    Every method takes the parameter allowInteractiveAuthentication (bool) beside its own: polkit may then
    ask a person whether the call is allowed, and the call waits for that. Without it such a call fails with
    AuthorizationRequired.
    """

    errors = _error_classes()


class Manager(SafetyMethods, VarlinkInterface, name="org.lightagent1.Manager"):
    """The daemon as a whole."""

    @varlinkmethod(return_parameter="status")
    async def GetStatus(self) -> api.Status:
        """The state of the daemon, its workers and its history, and what is wrong."""
        return await self.service.status(self.caller)

    @varlinkmethod(return_parameter="answer")
    async def Ask(
        self,
        *,
        agent: str,
        text: str,
        session: str | None = None,
        new: bool = False,
        timeout_s: float | None = None,
    ) -> api.Answer:
        """Prompt an agent and wait for the final answer; Sessions.Prompt streams instead."""
        return await self.service.ask(
            self.caller, agent=agent, text=text, session=session or "", new=new, timeout_s=timeout_s
        )

    @varlinkmethod(return_parameter="reloaded")
    async def Reload(self) -> api.Reloaded:
        """Read configuration, agents, skills and tools again, as SIGHUP does."""
        return await self.service.reload(self.caller)


class Agents(_Adapter, VarlinkInterface, name="org.lightagent1.Agents"):
    """The named agents."""

    @varlinkmethod(return_parameter="agents")
    async def List(self) -> list[api.Agent]:
        """All agents, broken and stopped ones too."""
        return await self.service.list_agents(self.caller)

    @varlinkmethod(return_parameter="agent")
    async def Get(self, *, name: str) -> api.Agent:
        """One agent."""
        return await self.service.get_agent(self.caller, name)

    @varlinkmethod(return_parameter="agent")
    async def Create(
        self,
        *,
        name: str,
        description: str | None = None,
        role: str | None = None,
        model: str | None = None,
        base_url: str | None = None,
        api_key_file: str | None = None,
        prompt: str | None = None,
    ) -> api.Agent:
        """Define an agent, keep the definition across restarts, and start it. prompt is its system prompt.
        Only an administrator may name an api_key_file.
        """
        return await self.service.create_agent(
            self.caller,
            name=name,
            description=description or "",
            role=role or "default",
            model=model or "",
            base_url=base_url or "",
            api_key_file=api_key_file or "",
            prompt=prompt or "",
        )

    @varlinkmethod
    async def Delete(self, *, name: str) -> None:
        """Stop an agent that was made with Create and forget its definition; its history stays."""
        await self.service.delete_agent(self.caller, name)

    @varlinkmethod(return_parameter="agent")
    async def Start(self, *, name: str) -> api.Agent:
        """Start a stopped agent."""
        return await self.service.start_agent(self.caller, name)

    @varlinkmethod(return_parameter="agent")
    async def Stop(self, *, name: str) -> api.Agent:
        """Cancel an agent's turns and stop it, until it is started again or the daemon restarts."""
        return await self.service.stop_agent(self.caller, name)

    @varlinkmethod(return_parameter="agent")
    async def Restart(self, *, name: str) -> api.Agent:
        """Stop and start an agent; its sessions stay."""
        return await self.service.restart_agent(self.caller, name)


class Sessions(_Adapter, VarlinkInterface, name="org.lightagent1.Sessions"):
    """Conversations. A session belongs to the uid that made it; to others it does not exist."""

    @varlinkmethod(return_parameter="session")
    async def Create(self, *, agent: str, title: str | None = None) -> api.Session:
        """Begin a conversation."""
        return await self.service.create_session(self.caller, agent, title or "")

    @varlinkmethod(return_parameter="sessions")
    async def List(self, *, agent: str | None = None) -> list[api.Session]:
        """The caller's sessions, newest first."""
        return await self.service.list_sessions(self.caller, agent or "")

    @varlinkmethod(return_parameter="session")
    async def Get(self, *, session: str) -> api.Session:
        """One session."""
        return await self.service.get_session(self.caller, session)

    @varlinkmethod(return_parameter="messages", allow_foreign=True)
    async def Messages(self, *, session: str, limit: int | None = None) -> list[api.Message]:
        """The newest messages of a conversation, oldest of them first; 100 unless limit says otherwise."""
        return await self.service.messages(self.caller, session, 100 if limit is None else limit)

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Prompt(
        self,
        *,
        text: str,
        agent: str | None = None,
        session: str | None = None,
        new: bool = False,
        correlation_id: str | None = None,
        unattended: bool = False,
        outside: bool = False,
        attachments: list[api.Attachment] | None = None,
    ) -> AsyncIterator[api.TurnEvent]:
        """Prompt an agent and stream the turn. Without session the caller's current one with the agent goes
        on, or with new a fresh one begins. The turn goes on when the caller hangs up. With unattended nobody
        is asked for approvals: what would be asked for is refused. With outside the prompt holds text that
        the caller did not write himself, such as standard input: it taints the session. attachments follow
        the text, each in a block of its own; they taint the session, too.
        """
        events = self.service.prompt(
            self.caller,
            agent=agent or "",
            text=text,
            session=session or "",
            new=new,
            correlation_id=correlation_id or "",
            unattended=unattended,
            outside=outside,
            attachments=attachments or [],
        )
        async with aclosing(_relay(events)) as relayed:
            async for event in relayed:
                yield event

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Watch(self, *, session: str) -> AsyncIterator[api.TurnEvent | None]:
        """What happens in a session from now on, turn after turn, whoever prompts. First comes an event
        session with the session as it is, and what the running turn waits for, if it waits. Ends with a null
        event when the session is deleted or the daemon stops.
        """
        async with aclosing(self.service.watch(self.caller, session)) as events:
            async for event in events:
                yield event
        raise LastResult(None)

    @varlinkmethod(return_parameter="session_info")
    async def Wait(self, *, session: str, timeout_s: float | None = None) -> api.Session:
        """Wait until nothing runs or waits in a session, or until timeout_s is over (error timeout). A paused
        session counts as done when its running turn is, and so does a plan that stopped at a failed task.
        """
        return await self.service.wait(self.caller, session, timeout_s)

    @varlinkmethod(return_parameter="session")
    async def Switch(self, *, session: str) -> api.Session:
        """Make a session the current one of its owner with its agent."""
        return await self.service.switch_session(self.caller, session)

    @varlinkmethod(return_parameter="session")
    async def Rename(self, *, session: str, title: str) -> api.Session:
        """Give a session another title, of one line."""
        return await self.service.rename_session(self.caller, session, title)

    @varlinkmethod(return_parameter="session")
    async def Pause(self, *, session: str) -> api.Session:
        """Have a session take no prompts and begin no turn. What runs goes to its end, what waits stays."""
        return await self.service.pause_session(self.caller, session)

    @varlinkmethod(return_parameter="session")
    async def Resume(self, *, session: str) -> api.Session:
        """Take a paused session up again."""
        return await self.service.resume_session(self.caller, session)

    @varlinkmethod(return_parameter="session")
    async def Fork(
        self, *, session: str, title: str | None = None, up_to_seq: int | None = None
    ) -> api.Session:
        """Begin a session with the conversation of another one, or with the part of it up to a message. It is
        the current one then. What taints the other one taints it, too.
        """
        return await self.service.fork_session(self.caller, session, title or "", up_to_seq)

    @varlinkmethod
    async def Delete(self, *, session: str, confirmed: bool = False) -> None:
        """Drop a session and all that was said in it; headers and hashes stay, so that the history still
        verifies. What runs is cancelled. Where there is a conversation the caller has to say that it is meant
        (error confirmation_required).
        """
        await self.service.delete_session(self.caller, session, confirmed=confirmed)

    @varlinkmethod(return_parameter="export")
    async def Export(self, *, session: str, format: str | None = None) -> api.Export:  # noqa: A002
        """A session as text: format is markdown, which is the default, or jsonl, which Import takes back."""
        return await self.service.export_session(self.caller, session, format or "markdown")

    @varlinkmethod(return_parameter="session")
    async def Import(self, *, agent: str, text: str, title: str | None = None) -> api.Session:
        """Begin a session with a conversation that was exported. It is text from outside, so it taints."""
        return await self.service.import_session(self.caller, agent, text, title or "")

    @varlinkmethod(return_parameter="cancelled")
    async def Cancel(self, *, session: str) -> int:
        """Cancel the running turn and the queued prompts of a session; says how many turns that were."""
        return await self.service.cancel(self.caller, session)


class Tools(_Adapter, VarlinkInterface, name="org.lightagent1.Tools"):
    """The tools, as the workers describe them."""

    @varlinkmethod(return_parameter="tools", allow_foreign=True)
    async def List(self) -> list[api.Tool]:
        """All tools, with their actions; broken files too."""
        return await self.service.list_tools(self.caller)

    @varlinkmethod(return_parameter="tool", allow_foreign=True)
    async def Get(self, *, name: str) -> api.Tool:
        """One tool."""
        return await self.service.get_tool(self.caller, name)

    @varlinkmethod(return_parameter="selection")
    async def Select(
        self, *, prompt: str, agent: str | None = None, limit: int | None = None
    ) -> api.Selection:
        """Which functions the model of an agent is offered for a prompt, the best first, with scores.

        10 unless limit says otherwise, and those that are always there. Without an agent, of all tools.
        """
        return await self.service.select_tools(
            self.caller, agent=agent or "", prompt=prompt, limit=10 if limit is None else limit
        )

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Call(self, *, agent: str, tool: str, action: str, args: Any) -> AsyncIterator[api.TurnEvent]:
        """Call an action as an agent would, through policy, worker and history, without a model. args is an
        object.
        """
        events = self.service.call_tool(self.caller, agent=agent, tool=tool, action=action, args=args)
        async with aclosing(_relay(events)) as relayed:
            async for event in relayed:
                yield event


class Skills(_Adapter, VarlinkInterface, name="org.lightagent1.Skills"):
    """The skills."""

    @varlinkmethod(return_parameter="skills")
    async def List(self) -> list[api.Skill]:
        """All skills, broken ones too, without their bodies."""
        return await self.service.list_skills(self.caller)

    @varlinkmethod(return_parameter="skill")
    async def Get(self, *, name: str) -> api.Skill:
        """One skill with its body."""
        return await self.service.get_skill(self.caller, name)


INTERFACES: tuple[
    type[
        Manager
        | Agents
        | Sessions
        | Plans
        | Inputs
        | Memory
        | Models
        | Usage
        | Events
        | History
        | Tools
        | Skills
        | Approvals
        | Policy
        | Undo
    ],
    ...,
] = (
    Manager,
    Agents,
    Sessions,
    Plans,
    Inputs,
    Memory,
    Models,
    Usage,
    Events,
    History,
    Tools,
    Skills,
    Approvals,
    Policy,
    Undo,
)
"""The interfaces that take calls, in the order of the documentation."""


def descriptions() -> dict[str, str]:
    """File name and text of each interface description."""
    return {
        f"{interface.name}.varlink": interface.render_interface_description()
        for interface in (Errors, *INTERFACES)
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in descriptions().items():
        (folder / name).write_text(text)
