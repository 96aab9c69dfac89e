"""Attacks with the rules of policy.d, which let calls run without a signature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .stage import CONFIG, Stage, attack, control, put

RULE = """
[[rule]]
name = "attacked"
decision = "{decision}"
tool = "bash"
args = {{ command = "touch {mark}*" }}
{more}
"""


def _rule(mark: Path, more: str = "even_if_tainted = true", decision: str = "allow") -> str:
    return RULE.format(mark=mark, more=more, decision=decision)


@control("a command that a rule allows, also with text from outside in the session")
def ruled(stage: Stage, mark: Path) -> None:
    with stage.rules(_rule(mark)):
        stage.run(stage.touch(mark))


@attack("use a rule that was removed")
def removed(stage: Stage, mark: Path) -> bool:
    with stage.rules(_rule(mark)):
        stage.run(stage.command(f"touch {mark}-with"))
    stage.run(stage.command(f"touch {mark}-without"))
    return not Path(f"{mark}-with").exists() or Path(f"{mark}-without").exists()


@attack("use a rule that an administrator replaced within the same second")
def replaced(stage: Stage, mark: Path) -> bool:
    with stage.rules(_rule(mark)):
        stage.run(stage.command(f"touch {mark}-with"))
        put(CONFIG / "policy.d" / "daemon-attacks.toml", _rule(mark).replace("touch", "tough"))
        stage.run(stage.touch(mark))
    return not Path(f"{mark}-with").exists()


@attack("use a rule for another agent")
def of_another_agent(stage: Stage, mark: Path) -> None:
    with stage.rules(_rule(mark, 'even_if_tainted = true\nagent = "web"')):
        stage.run(stage.touch(mark))
        stage.run(stage.touch(mark, agent="web"))
        stage.run(stage.touch(mark, agent="web"), agent="ops")


@attack("use a rule for the calls of a user, with that owner forged")
def forged_owner(stage: Stage, mark: Path) -> None:
    with stage.rules(_rule(mark, "even_if_tainted = true\ncaller = [0]")):
        stage.run(stage.touch(mark, owner=0))
    with stage.rules(_rule(mark, 'even_if_tainted = true\ncaller = ["group:root"]')):
        stage.run(stage.touch(mark, owner=0))


@attack("use a rule for what a person began, with that trigger forged")
def forged_trigger(stage: Stage, mark: Path) -> None:
    for trigger in ("person", "schedule", "*"):
        with stage.rules(_rule(mark, f'even_if_tainted = true\ntrigger = "{trigger}"')):
            for said in ("person", "schedule", "", "confirm", "check"):
                stage.run(stage.touch(mark, trigger=said))


@attack("say that there is no text from outside, for a rule that counts only then")
def untainted(stage: Stage, mark: Path) -> None:
    with stage.rules(_rule(mark, "")):
        stage.run(stage.touch(mark))
        stage.run(stage.touch(mark), tainted=False)
        stage.run(stage.touch(mark), given={"tainted": False})


@control("the same where an administrator trusts the daemon with taint")
def trusted_with_taint(stage: Stage, mark: Path) -> None:
    config = CONFIG / "lightagentd.toml"
    before = config.read_text() if config.exists() else None
    put(config, "[worker]\ntrust_daemon_taint = true\n")
    with stage.rules(_rule(mark, "")):
        stage.run(stage.touch(mark))
    config.unlink() if before is None else put(config, before)


@attack("change what an exact rule is about")
def not_exactly(stage: Stage, mark: Path) -> None:
    text = _rule(mark, 'even_if_tainted = true\nexactly = { command = "true", cwd = "/", effect = "change" }')
    with stage.rules(text.replace(f'args = {{ command = "touch {mark}*" }}\n', "")):
        stage.run(stage.touch(mark))
        stage.run(stage.command("true", args={"command": f"touch {mark}", "cwd": "/", "effect": "change"}))


@attack("leave a pattern of a rule with a second command in the same text")
def beyond_the_pattern(stage: Stage, mark: Path) -> None:
    text = _rule(mark).replace(f"touch {mark}*", "systemctl restart nginx*")
    with stage.rules(text):
        for more in (
            f"; touch {mark}",
            f"\ntouch {mark}",
            f" $(touch {mark})",
            f" && touch {mark}",
            f" | touch {mark}",
        ):
            stage.run(stage.command(f"systemctl restart nginx.service{more}"))


@attack("run what a person approved, though a rule denies it now")
def denied_by_now(stage: Stage, mark: Path) -> None:
    wanted = stage.touch(mark)
    grant = stage.granted(wanted)
    with stage.rules(_rule(mark, 'reason = "no"', "deny")):
        stage.run(wanted, grant)
    grant = stage.granted(wanted)
    with stage.rules(_rule(mark, 'reason = "no"\ntrigger = "schedule"', "deny")):
        stage.run(replace(wanted, trigger="schedule"), grant)


@attack("name itself a flow, a plan, a check, an undo or a confirmation, which their beginners answered for")
def by_trigger(stage: Stage, mark: Path) -> None:
    for trigger in (
        "flow",
        "flow:nightly",
        "plan",
        "plan:1",
        "confirm",
        "undo",
        "check",
        "context",
        "timer",
        "unit",
    ):
        stage.run(stage.touch(mark, trigger=trigger))
        stage.run(stage.touch(mark, trigger=trigger), plan="applied", approval="apr_0123456789abcdef")


@attack("have broken rules, or rules that the daemon offers, count as none")
def other_rules(stage: Stage, mark: Path) -> None:
    own = "/var/lib/lightagentd/policy.d/allow.toml"
    stage.unit.write(path=own, text=_rule(mark))
    stage.run(stage.touch(mark), config="/var/lib/lightagentd")
    stage.free.run(argv=["true"], env={"LIGHTAGENT_CONFIG_DIR": "/var/lib/lightagentd"})
    with stage.rules("[[rule]]\nname = 'x'\nthis is broken"):
        stage.run(stage.touch(mark))
