"""A daemon for the tests of the client and of lactl: a real socket, and answers that the test writes down.

It speaks the wire format by hand, so that it can also break off, answer nonsense, or answer what a later
version might. The samples are instances of the public types, so that their shape is that of the interface.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightagentd import api

PREFIX = "org.lightagent1."


class Connection:
    """The server's end of one connection, as a handler sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def reply(self, parameters: dict[str, Any], *, continues: bool = False) -> None:
        self._send({"parameters": parameters, **({"continues": True} if continues else {})})

    def error(self, name: str, **parameters: Any) -> None:
        self._send({"error": name, "parameters": parameters})

    def _send(self, message: dict[str, Any]) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\0", socket.MSG_NOSIGNAL)


Handler = Callable[[Connection, dict[str, Any]], None]


class ScriptedDaemon:
    """Listens on `path` from `start` to `stop`; a thread for each connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[dict[str, Any]] = []
        """The calls that came in, with the method's name as `Client` takes it."""
        self._handlers: dict[str, Handler] = {}
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []

    def handle(self, method: str, handler: Handler) -> None:
        self._handlers[method] = handler

    def handler(self, method: str) -> Handler:
        return self._handlers[method]

    def answer(self, method: str, *replies: dict[str, Any]) -> None:
        """Answer with these parameters; several of them are a stream."""

        def handler(connection: Connection, call: dict[str, Any]) -> None:
            for number, reply in enumerate(replies):
                connection.reply(reply, continues=number < len(replies) - 1)

        self.handle(method, handler)

    def turn(self, *events: dict[str, Any], method: str = "Sessions.Prompt") -> None:
        """Answer a prompt with these turn events."""
        self.answer(method, *({"event": turn_event(**event)} for event in events))

    def fail(self, method: str, error: str, **parameters: Any) -> None:
        self.handle(method, lambda connection, call: connection.error(error, **parameters))

    def raw(self, method: str, data: bytes) -> None:
        """Answer with these bytes and hang up."""

        def handler(connection: Connection, call: dict[str, Any]) -> None:
            connection.sock.sendall(data, socket.MSG_NOSIGNAL)
            connection.sock.shutdown(socket.SHUT_RDWR)

        self.handle(method, handler)

    def parameters(self, method: str) -> dict[str, Any]:
        """The parameters of the only call of a method."""
        (found,) = [call["parameters"] for call in self.calls if call["method"] == method]
        assert isinstance(found, dict)
        return found

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,))
        self._accepting.start()

    def stop(self) -> None:
        """Close the socket and every connection, and wait for the threads."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            self.path.unlink()
            self._accepting.join()  # who connects just now is taken, and hung up on as the others
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._connections.clear()

    def _run(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,))
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._run(self._serve, connection)

    def _serve(self, sock: socket.socket) -> None:
        buffer = b""
        with sock, contextlib.suppress(OSError):
            while chunk := sock.recv(1 << 20):
                buffer += chunk
                *messages, buffer = buffer.split(b"\0")
                for message in messages:
                    self._dispatch(Connection(sock), json.loads(message))

    def _dispatch(self, connection: Connection, call: dict[str, Any]) -> None:
        call["method"] = call["method"].removeprefix(PREFIX)
        self.calls.append(call)
        handler = self._handlers.get(call["method"])
        if handler is None:
            connection.error("org.varlink.service.MethodNotFound", method=call["method"])
        else:
            handler(connection, call)


def turn_event(type: str, **fields: Any) -> dict[str, Any]:  # noqa: A002 - the event's field
    return {"type": type, "session": "ses_1", "trace_id": "trace_1", **fields}


def status(**changes: Any) -> dict[str, Any]:
    return asdict(
        api.Status(
            version="0.1.0",
            pid=4711,
            state="running",
            panic=None,
            started_us=1_763_768_400_000_000,
            uptime_s=7_500.0,
            model="runbook",
            agents_running=1,
            agents_total=2,
            sessions=3,
            turns_running=1,
            turns_queued=0,
            turns_waiting=0,
            sandbox="bwrap",
            journal=True,
            journal_dropped=0,
            history=api.HistoryStatus(
                path="/var/lib/lightagentd/history",
                events=1234,
                size_bytes=3 << 20,
                disk_low=False,
                examined_us=0,
            ),
            workers=[
                api.WorkerStatus(
                    agent="ops",
                    owner=0,
                    effect="observe",
                    unit="",
                    backend="bwrap",
                    enforced=True,
                    pid=99,
                    busy=False,
                )
            ],
            problems=[],
        )
    ) | dict(changes)


def agent(name: str = "ops", **changes: Any) -> dict[str, Any]:
    return asdict(
        api.Agent(
            name=name,
            description="Looks after this machine",
            role="default",
            model="runbook",
            model_from="configuration",
            fallback=[],
            tools=["bash", "systemd"],
            skills=[],
            agents=[],
            kit="",
            own_tools=[],
            own_skills=[],
            covered_skills=[],
            effects=["observe", "reach"],
            max_steps=40,
            origin="/usr/share/lightagentd/agent/ops",
            state="running",
            restarts=0,
            sessions=2,
            problem="",
        )
    ) | dict(changes)


def session(id: str = "ses_1", **changes: Any) -> dict[str, Any]:  # noqa: A002 - the field's name
    return asdict(
        api.Session(
            id=id,
            agent="ops",
            owner=0,
            title="check disk",
            state="idle",
            created_us=1_763_768_400_000_000,
            updated_us=1_763_768_460_000_000,
            turns=1,
            queued=0,
            paused=False,
            current=True,
            mode="normal",
            waits_for="",
            forked_from="",
            model="",
            holder="",
            interrupted="",
            tainted=False,
            tainted_by="",
            hosts=[],
            leaves=[],
            parent="",
            of_turn="",
        )
    ) | dict(changes)


def approval(id: str = "apr_0123456789abcdef", **changes: Any) -> dict[str, Any]:  # noqa: A002
    return asdict(
        api.Approval(
            id=id,
            agent="ops",
            session="ses_1",
            owner=0,
            trace_id="trace_1",
            call_id="call_1",
            tool="file",
            action="write",
            effect="change",
            args={"path": "/etc/motd", "content": "hello"},
            cwd="",
            digest="0" * 64,
            preview="--- /etc/motd\n+++ /etc/motd\n@@ -1 +1 @@\n-hi\n+hello\n",
            rule="default-change",
            reason="a change is asked for",
            created_us=1_763_768_400_000_000,
            expires_us=1_763_772_000_000_000,
            state="waiting",
            answered_by=None,
            answered_us=0,
            note="",
            volatile=False,
            confirm_within_s=0,
            check="",
            inverse="",
            may_answer=True,
        )
    ) | dict(changes)


def message(role: str, content: str, **changes: Any) -> dict[str, Any]:
    return asdict(
        api.Message(
            seq=1,
            time_us=1_763_768_400_000_000,
            role=role,
            speaker="",
            content=content,
            name="",
            tool_call_id="",
            tool_calls=[],
            reasoning="",
            cut_off="",
        )
    ) | dict(changes)


def tool(name: str = "systemd", **changes: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "unit": {"type": "string"},
            "lines": {"type": "integer", "default": 50},
            "mode": {"$ref": "#/$defs/Mode"},
            "since": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "deep": {"type": "boolean", "description": "Look below."},
        },
        "required": ["unit"],
        "$defs": {"Mode": {"type": "string", "enum": ["1", "2"]}},
    }
    return asdict(
        api.Tool(
            name=name,
            description="Units of systemd",
            origin="/usr/share/lightagentd/tools/systemd.py",
            actions=[
                api.Action(
                    name="status",
                    description="Show one unit.",
                    effect="observe",
                    taints=False,
                    timeout_s=30.0,
                    schema=schema,
                )
            ],
            problem="",
        )
    ) | dict(changes)


def flow(name: str = "patch-day", **changes: Any) -> dict[str, Any]:
    given = api.FlowInput(name="only_security", type="boolean", description="", required=False, default=True)
    return asdict(
        api.Flow(
            name=name,
            path=f"/etc/lightagentd/flows/{name}.toml",
            description="Upgrade what is to be upgraded",
            agent="ops",
            inputs=[given],
            steps=7,
            problem="",
        )
    ) | dict(changes)


def flow_run(**changes: Any) -> dict[str, Any]:
    return asdict(
        api.FlowRun(
            id="run_0123456789abcdef",
            flow="patch-day",
            state="waiting",
            owner=0,
            agent="ops",
            session="ses_0123456789abcdef",
            inputs="{}",
            unattended=False,
            trigger="",
            parent="",
            copied_from="",
            changed=False,
            started_us=1_763_768_400_000_000,
            ended_us=0,
            code="",
            message="",
            waits=["apr_0123456789abcdef"],
            done=3,
            steps=7,
        )
    ) | dict(changes)


def flow_step(name: str = "upgrade", **changes: Any) -> dict[str, Any]:
    return asdict(
        api.FlowStep(
            name=name,
            kind="call",
            state="pending",
            after=["approve"],
            attempt=0,
            agent="ops",
            session="",
            trace_id="",
            run="",
            waits_for="",
            will='bash.exec {"command": "apt-get upgrade"}',
            output="",
            code="",
            message="",
            total_tokens=0,
            cost=None,
            started_us=0,
            ended_us=0,
        )
    ) | dict(changes)


def trigger(name: str = "disk", **changes: Any) -> dict[str, Any]:
    return asdict(
        api.Trigger(
            name=name,
            on="timer",
            about="a moment of a calendar, systemd.time(7)",
            agent="ops",
            owner="carol",
            prompt="check disk",
            flow="",
            session="aside",
            effects=["observe"],
            rate_limit=12,
            rate_period_s=3600.0,
            coalesce_s=0.0,
            catch_up=False,
            answer="journal",
            state="active",
            problem="",
            fired=3,
            coalesced=0,
            limited=0,
            refused=0,
            missed=0,
            waiting=0,
            answered=3,
            failed=0,
            last_us=1_763_768_400_000_000,
        )
    ) | dict(changes)


def eval_run(id: str, **changes: Any) -> dict[str, Any]:  # noqa: A002 - as it is called
    return asdict(
        api.EvalRun(
            id=id,
            name="ops",
            owner=1000,
            agent="ops",
            models=["work/a"],
            cases=72,
            times=5,
            state="done",
            passed=320,
            failed=40,
            errors=0,
            started_us=1_763_768_400_000_000,
            ended_us=1_763_768_500_000_000,
        )
    ) | dict(changes)


def kit(name: str = "dba", **changes: Any) -> dict[str, Any]:
    return asdict(
        api.Kit(
            name=name,
            description="Looks after databases",
            folder=f"/var/lib/lightagentd/kits/{name}",
            added=True,
            skills=["db-check"],
            tools=["dbstat"],
            agents=["reader"],
            hooks=[],
            flows=[],
            evals=[],
            references=[],
            files=9,
            size_bytes=2000,
            problems=[],
            warnings=[],
        )
    ) | dict(changes)


def skill(name: str = "disk", **changes: Any) -> dict[str, Any]:
    return asdict(
        api.Skill(
            name=name,
            description="What fills the disk",
            prompts=["check disk"],
            args=[],
            effect="observe",
            runbook=True,
            origin="/usr/share/lightagentd/skills/disk",
            problem="",
            body="",
        )
    ) | dict(changes)


def event(seq: int, topic: str = "agent.message", type: str = "message", **changes: Any) -> dict[str, Any]:  # noqa: A002
    return asdict(
        api.StoredEvent(
            seq=seq,
            time=1_763_768_400_000_000 + seq * 1_000_000,
            topic=topic,
            type=type,
            source="agent",
            agent="ops",
            session="ses_1",
            owner=0,
            caller=None,
            request_id="",
            trace_id="trace_1",
            correlation_id="",
            data_sha256="0" * 64,
            prev="0" * 64,
            data={"role": "user", "content": f"event {seq}"},
            hash="0" * 64,
        )
    ) | dict(changes)
