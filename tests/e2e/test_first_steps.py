"""What somebody new tries first, with lactl alone: each part of the product once, in the worker units."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

import pytest

from tests import scripted_model

from .calls import call
from .loopback import answering, listening
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json

pytestmark = pytest.mark.e2e


def test_doctor_says_that_everything_holds(service: Machine) -> None:
    service.run(["systemctl", "enable", "--now", "lightagent-change@ops.socket"])
    try:
        done = lactl(service, "doctor", "-v", check=False)
    finally:
        service.run(["systemctl", "disable", "--now", "lightagent-change@ops.socket"])
    assert done.status == 0, done.explain()
    assert done.stdout.splitlines()[0] == "All that is promised holds."
    for effect in ("observe", "reach", "change"):
        assert f"ops, {effect}: systemd\n" in done.stdout
    assert "NOT HELD" not in done.stdout
    assert "not tried" not in done.stdout


def test_doctor_of_a_fresh_machine_has_nothing_to_complain_about(service: Machine) -> None:
    done = lactl(service, "doctor", check=False)
    assert done.status == 0, done.explain()
    assert done.stdout.splitlines()[0] == "All that is promised holds."


def test_status_of_a_fresh_machine_names_no_problem(service: Machine) -> None:
    assert lactl_json(service, "status")["problems"] == []


def test_a_watch_sees_what_others_do(service: Machine) -> None:
    service.run(["mkdir", "-p", "/srv/e2e-watched"])
    watch = call(service, "inotify.watch", path="/srv/e2e-watched")["text"].split()[0].rstrip(":.,")
    service.run(["touch", "/srv/e2e-watched/made"])
    try:
        eventually(
            lambda: "/srv/e2e-watched/made" in lactl(service, "--json", "history", "--limit", "50").stdout,
            "the event is in the history, though nobody polls",
        )
    finally:
        call(service, "inotify.stop", watch=watch)
        service.run(["rm", "-r", "/srv/e2e-watched"])


def test_a_key_signs_and_verifies_by_its_handle(service: Machine) -> None:
    key = call(service, "crypto.generate_keypair", label="e2e")["metadata"]["handle"]
    signature = call(service, "crypto.sign", handle=key, text="hello")["metadata"]["base64"]
    for text, valid in (("hello", True), ("hellO", False)):
        checked = call(service, "crypto.verify_with_key", handle=key, text=text, signature=signature)
        assert checked["type"] == "tool_result", checked
        assert checked["metadata"]["valid"] is valid, checked


def test_a_listening_socket_is_shown_with_its_process(service: Machine) -> None:
    """Other users' processes are what lightagent-inspect is for."""
    listen = "import socket, time; s = socket.create_server(('127.0.0.1', 4567)); time.sleep(600)"
    service.run(["systemd-run", "--unit=e2e-listens", "--collect", "python3", "-c", listen])
    try:
        eventually(lambda: "4567" in call(service, "net.connections")["text"], "the socket is there")
        shown = call(service, "net.connections")["text"]
        assert "python3" in next(line for line in shown.splitlines() if "4567" in line)
    finally:
        service.run(["systemctl", "stop", "e2e-listens.service"])


def test_output_that_was_cut_can_be_read_again(service: Machine) -> None:
    end = call(service, "bash.exec", command="seq 1000000", effect="observe")
    assert "\n500000\n" not in end["text"]
    again = call(service, "bash.read_output", handle=end["metadata"]["output_handle"], offset=3_388_000)
    assert "\n500000\n" in again["text"]


def test_report_of_the_embedded_model_needs_nothing(service: Machine) -> None:
    text = lactl(service, "prompt", "ops", "check disk").stdout
    assert "%" in text
    assert json.loads(lactl(service, "--json", "status").stdout)["sandbox"] == "systemd"
    assert service.run(["systemctl", "is-active", UNIT]).stdout == "active\n"


class OneModel(BaseHTTPRequestHandler):
    """A model that does what a test of it asks for, and else says one thing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        word = {"word": "lantern", "number": 7}
        is_test = b"report_word" in body
        answer = (
            scripted_model.call("report_word", word) if is_test else scripted_model.say("a model answers")
        )
        data = b"".join(answer.pieces)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def test_setup_gives_all_agents_a_model_and_lets_a_user_ask(service: Machine) -> None:
    own, key = "/etc/lightagentd/lightagentd.toml.d/50-setup.toml", "/etc/lightagentd/keys/work"
    service.run(["sh", "-c", "echo sk-7731-of-the-test >/root/key"])
    try:
        with answering(listening(service), OneModel) as port:
            model = [
                "--model",
                "work/one",
                "--base-url",
                f"http://127.0.0.1:{port}/v1",
                "--key-file",
                "/root/key",
            ]
            told = lactl_json(service, "setup", "--yes", *model, "--group", "daemon")
            assert [(step["step"], step["state"]) for step in told["steps"]] == [
                ("model", "done"),
                ("group", "done"),
            ]
            assert lactl(service, "prompt", "ops", "xyzzy plugh").stdout == "a model answers\n"
            again = lactl_json(service, "setup", "--yes", *model, "--group", "daemon")
            assert {step["state"] for step in again["steps"]} == {"unchanged"}
        stat = service.run(["stat", "-c", "%a %U", own, key]).stdout
        assert stat.splitlines() == ["644 root", "600 lightagent"]
        assert "lightagent" in service.run(["id", "-nG", "daemon"]).stdout.split()
    finally:
        service.run(["rm", "-f", own, key, "/root/key"])
        service.run(["gpasswd", "--delete", "daemon", "lightagent"], check=False)
        lactl(service, "reload")
