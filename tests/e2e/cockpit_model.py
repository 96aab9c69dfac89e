"""The model behind the tests of the page: it does what the newest prompt says."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.scripted_model import DONE, call, chunk, say

EVIL = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n\n"
    "[press](javascript:document.title='owned') [go](https://example.org/) ![far](http://127.0.0.1:1/x.png)\n\n"
    "red \x1b[31mtext and \u202eturned\u202c and \u200bhidden"
)
WORDS = [f"word{number} " for number in range(60)]


class Model(BaseHTTPRequestHandler):
    """Does what the newest prompt says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = _answer(body["messages"])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for piece in answer.pieces:
                self.wfile.write(piece)
                self.wfile.flush()
                time.sleep(answer.pause_s)
        except OSError:
            pass  # a turn was cancelled
        self.close_connection = True


def _answer(messages: list[dict[str, Any]]) -> Any:
    last = messages[-1]
    if last["role"] == "tool":
        return say("It said: ", last["content"][:200])
    prompt = str([one for one in messages if one["role"] == "user"][-1]["content"])
    if "stream" in prompt:
        return say(*WORDS, pause_s=0.05)
    if "slowly" in prompt:
        return say(*WORDS, pause_s=0.5)
    if "evil" in prompt:
        return say(EVIL)
    if "think" in prompt:
        pieces = [
            chunk({"reasoning_content": "first I look"}),
            chunk({"content": "then I say"}),
            chunk({}, "stop"),
            DONE,
        ]
        return type(say())(pieces=pieces)
    if "write" in prompt:
        return call("file_write", {"path": "/srv/page.txt", "content": "new <b>line</b>\nold line\n"})
    if "look" in prompt:
        return call("bash_exec", {"command": "printf '\\033[31m<i>seen</i>\\n'", "effect": "observe"})
    if "question" in prompt:
        return call("human_ask", {"question": "Which <disk>?", "choices": ["sda", "sdb"]})
    if "remember" in prompt:
        return call("memory_remember", {"text": "The disk is <new>.", "for_all_agents": True})
    if "hand over" in prompt:
        return call("agent_transfer", {"agent": "clerk"})
    if "plan it" in prompt:
        tasks = [
            {"id": "1", "text": "look at the disk", "check": "false"},
            {"id": "2", "text": "say so", "check": "test -e /srv/ready"},
        ]
        return call("plan_propose", {"title": "Tidy up", "tasks": tasks})
    return say("**Done**: ", prompt[:100])
