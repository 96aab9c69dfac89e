"""What triggers do about each thing that happened, and what becomes of the answers."""

from __future__ import annotations

from lightagentd.events.types.event_type import NOTICE, WARNING, Object, Reported, Text


class TriggerFired(Reported, topic="trigger.fired", type="fired"):
    """A trigger asks its agent."""

    catalog = """A trigger asks the agent @AGENT@
    Something happened that a file below /etc/lightagentd/triggers waits for, or a unit asked what a file
    below /etc/lightagentd/prompts says. Nobody is there: a call that needs an approval is refused.
    > What it does: lactl sessions show @SESSION@. What else happened: lactl triggers log"""
    message: Text
    trigger: Text
    firing: Text
    on: Text
    happened: Object
    """The first thing that it is about."""
    count: int = 1
    """How many things are put into this question."""
    round: int = 1
    """How many firings led to each other: above 1, its own effects fired it again."""
    test: bool = False


class TriggerHeld(Reported, topic="trigger.held", type="held"):
    """Things happened about which no agent is asked by themselves."""

    catalog = """A trigger was not fired for all that happened
    Some of what happened was put into a question that waits already (coalesced), came too often (limited), or
    was refused; the message says why. All of it is counted: lactl triggers show.
    > The limits are rate_limit, rate_period_s and coalesce_s of the trigger's file."""
    message: Text
    trigger: Text
    coalesced: int = 0
    limited: int = 0
    refused: int = 0


class TriggerMissed(Reported, topic="trigger.missed", type="missed"):
    """Things happened while nobody followed them."""

    priority = NOTICE
    catalog = """A trigger missed something
    While lightagentd or lightagent-triggers.service did not run, things happened that the trigger waits for.
    With catch_up in its file its agent is asked about them now, once; without, nobody is.
    > To ask by hand: lactl triggers test NAME"""
    message: Text
    trigger: Text
    count: int
    from_us: int
    to_us: int
    catch_up: bool


class TriggerStopped(Reported, topic="trigger.stopped", type="stopped"):
    """A trigger was stopped: its own effects fired it again and again."""

    priority = WARNING
    catalog = """A trigger was stopped
    What its agent did fired the trigger again, three rounds long, so it is stopped until a person lets it go
    on. What happens meanwhile is refused, and counted.
    > What it did: lactl triggers log NAME. Change what it waits for or may do, then: lactl triggers resume
    NAME"""
    message: Text
    trigger: Text


class TriggerPaused(Reported, topic="trigger.paused", type="paused"):
    """A person paused a trigger."""

    catalog = """A trigger was paused
    What happens meanwhile is refused, and counted.
    > To let it go on: lactl triggers resume NAME"""
    message: Text
    trigger: Text


class TriggerResumed(Reported, topic="trigger.paused", type="resumed"):
    """A person let a paused or stopped trigger go on."""

    catalog = """A trigger goes on
    It was paused or stopped, and fires again.
    > How it stands: lactl triggers show NAME"""
    message: Text
    trigger: Text


class TriggerAnswered(Reported, topic="trigger.answered", type="answered"):
    """The agent that a trigger asked came to an answer."""

    catalog = """A trigger's agent @AGENT@ answered
    The answer is in the session @SESSION@, and goes where the trigger's file says.
    > To read it: lactl sessions show @SESSION@"""
    message: Text
    trigger: Text
    firing: Text


class TriggerFailed(Reported, topic="trigger.answered", type="failed"):
    """The agent that a trigger asked came to no answer."""

    priority = WARNING
    catalog = """A trigger's agent @AGENT@ came to no answer
    The message says why.
    > What it did: lactl sessions show @SESSION@. To try it by hand: lactl triggers test NAME"""
    code: Text
    message: Text
    trigger: Text
    firing: Text


class TriggerDelivered(Reported, topic="trigger.delivered", type="delivered"):
    """The answer is where the trigger's file says."""

    catalog = """The answer of a trigger's agent was delivered
    lightagent-triggers.service took it to where the trigger's file says.
    > The same answer: lactl sessions show @SESSION@"""
    message: Text
    trigger: Text
    firing: Text


class TriggerUndelivered(Reported, topic="trigger.delivered", type="undelivered"):
    """The answer could not be taken to where the trigger's file says."""

    priority = WARNING
    catalog = """The answer of a trigger's agent could not be delivered
    The message says why. The answer is kept in the session @SESSION@.
    > To read it: lactl sessions show @SESSION@"""
    message: Text
    trigger: Text
    firing: Text


class WebhookTaken(Reported, topic="trigger.webhook", type="taken"):
    """A request was taken that fires a trigger, with its whole body; its number is the request id."""

    catalog = """A request came for a webhook
    The gateway took it, and its signature or token is right. The trigger's agent is asked about it.
    > To read it: lactl webhooks show NUMBER. What it led to: lactl triggers log"""
    message: Text
    trigger: Text
    digest: Text
    """SHA-256 of the body."""
    headers: Object
    """Those that say what it is about."""
    body: Text
    replay_of: Text = ""


class WebhookRefused(Reported, topic="trigger.webhook", type="refused"):
    """Requests for a webhook were refused: they are not signed as its file says, or are old."""

    priority = NOTICE
    catalog = """Requests for a webhook were refused
    They are not signed with the secret of the trigger's file, or their time is too far from now. The journal
    tells of them once a minute at the most, with their count.
    > Look at signed and secret_file of the trigger, and at the clocks of both machines."""
    message: Text
    trigger: Text
    count: int
