"""Recognizes talk about something else: other subjects, concepts instead of this machine, other languages.

Works on the words of a prompt after `arguments.extract`. Nothing here knows a skill.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightagentd.llm.runbook.elsewhere import FOREIGN, OFF_TOPIC
from lightagentd.llm.runbook.tokens import Token
from lightagentd.llm.runbook.vocabulary import words

_CONCEPT = (
    r"(?:dns|swap|swapping|inodes?|oom|systemd|journald|tls|ssl|ssh|cron|tcp|udp|iowait|load "
    r"average|steal time|"
    r"sudo|root|dhcp|ram|memory|cpu|a?n? ?ip address|ipv[46]|ports?|sockets?|packet loss|"
    r"latency|tmpfs|lvm|nfs|ntp|"
    r"cgroups?|zombies?|zombie process(?:es)?|pid|file descriptors?|certificates?|x509|brute "
    r"force|kernel panic|"
    r"load|uptime|page cache|memory leaks?|virtual memory|the oom killer|oom killer|the kernel|"
    r"the difference|"
    r"acme|lets encrypt|let's encrypt|certbot|netstat|lsof|ss|journalctl|dmesg|systemctl|apt|"
    r"dnf|polkit|selinux)"
)
_DEFINITION = re.compile(
    r"(?:hey |hi |so |and |please |ok |but )*(?:what|who) (?:is|are) (?:a |an "
    r")?(?P<what>[a-z0-9]+(?: [a-z0-9]+)?)"
    r"(?: exactly| anyway| actually| again)?(?: (?:in|on|for) (?:linux|unix|systemd|computing|networking))?"
)
_STATES = words(
    """
    wrong down up slow slower slowest busy full fuller fullest dead alive broken open closed big bigger
    biggest huge large larger largest heavy hot cold high low free available left used usage use current
    currently status state load uptime on here there new old outdated stale late off online offline root
    logged to it this that these those not so the my our your unhealthy unstable unhappy stuck weird odd
    strange suspicious interesting pending due expired invalid top most using taking eating hogging
    burning filling connected exposed reachable unreachable listening swapping ip address addresses ips
    going out in behind inside under happening up down next missing vulnerable insecure degraded inactive
    failed errors worst best highest memory disk cpu
    """
)
"""With one of these it is a question about the machine: `what is down`, `what is disk usage`."""
_LATIN = 0x24F
"""The last letter of the Latin alphabets with accents, in Unicode."""
_OTHER_TALK = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"\bwhat does (?!this|the|our|that|my|it)\w+ do(?: exactly)?$|\b(?:is|are) (?:it|they|"
            r"this) called\b|\bruns? next\b|\bnext run\b"
        ),
        (
            r"\b(?:do|does|did|will|can)(?: not|n't) (?:compile|build|render|lint|typecheck)\b|"
            r"\bservice desk\b|\bswap meet\b"
        ),
        r"\b(?:which|what) command (?!did|was|were|is)|\bwhat does \S+(?: <flag>)+ do$",
        (
            r"^(?:is|are) (?!.*(?:reboot|restart|update))\w+ (?:necessary|needed|required|useful|"
            r"recommended|a good idea|bad)$"
        ),
        (
            r"\b(?:what|which) (?:kind of |type of |sort of |model of )?(?:cpu|processor|ram|hardware) "
            r"(?:is|are) (?:in|inside|installed|built)\b|\b(?:what|which) (?:kind of |type of "
            r")?(?:cpu|processor|hardware) "
            r"(?:does|do) \w+(?: \w+)? have\b"
        ),
        (
            r"\b(?:best practices?|cheat ?sheets?|man ?pages?|documentation|docs for|syntax|"
            r"examples? of|tips|tricks|"
            r"interview questions?|step by step|walkthrough)\b"
        ),
        (
            r"\bhow (?:would|should) (?:i|we|you|one)\b|^why (?:do|does|should|would) (?:we|you|i|"
            r"one|people|linux) (?:use|need|have|want)\b"
        ),
        r"^what (?:is|are) (?:\w+ ){1,2}for$|^knock knock$",
        r"^why do (?:servers|computers|people|systems|machines|processes|programs|companies) \w+ \w+$",
        r"\bhas an? (?:\w+ )?<path>",
        r"^is it (?:bad|good|safe|ok|okay|normal|recommended|wise|better|worth) to\b",
        (
            r"\bin (?:java|python|php|c|rust|go|perl|ruby|node|javascript|bash) (?:code|programs?|"
            r"scripts?|projects?|apps?)\b"
        ),
        r"\bin the \S+ group\b|\bmembers? of\b",
        (
            r"\bwho is on call\b|\bin my (?:\S+ )?(?:code|class|script|program|function|project|app "
            r"code|app|form|query)\b"
        ),
        (
            rf"^(?:so |and |hey |hi |please )*(?:what|who) (?:is|are) {_CONCEPT}(?: exactly| anyway| "
            rf"in linux| on linux)?$"
        ),
        (
            rf"\b(?:explain|describe|define|definition of|concept of|introduction to|understand) "
            rf"(?:to me |me )?"
            rf"(?:the concept of |how |what )?{_CONCEPT}(?: (?:to|for|in|like|simply|is|are|works?)\b.*)?$"
        ),
        (
            r"\bwhat does (?:the |a )?(?:<unit>|\w+ (?:command|flag|option)) do$|\bwhat is "
            r"<unit>(?: used)?(?: for)?$"
        ),
        (
            r"\b(?:in|on|for|under|using) (?:windows|macos|mac|android|ios|iphone|excel|powershell|"
            r"osx|freebsd)(?: \d+)?$"
        ),
        (
            r"^(?:is|are|do we have|do i have|have we got) (?:the |a |an )?(?:<unit>|\w+) "
            r"(?:already )?installed\b"
        ),
        r"\b(?:in|with|using) (?:python|java|bash|perl|ruby|go|golang|php|c|c\+\+|awk|sed)$",
        (
            r"^(?:why|how) (?:do|does|is|are) (?:my|this|the) (?:\w+ )?(?:code|function|script|"
            r"query|regex|loop|class|test|tests)\b"
        ),
        (
            r"\btake to \w+ an? \b|\bwho (?:is|was) the \w+ of\b|\b(?:alternatives?|introduction|"
            r"intro|guide) (?:to|for)\b"
        ),
        (
            r"^(?:(?:what|which) is better,? )?\S+ (?:vs|versus) \S+$|\b(?:what|which|who|"
            r"where) (?:is|are) (?:the )?(?:better|best)\b|\b(?:a|some) good\b|^(?:the )?best\b"
        ),
        (
            r"\bwhy do people\b|\bdo you (?:have an? |log|like|want|remember|sleep|use|store|record|"
            r"feel|dream|love|know what|think)\b|\bare you (?:ok|okay|there|alive|running|human|"
            r"real)\b"
        ),
        (
            r"\bhow (?:to|(?:do|does|can|could|should|would) (?:i|we|you|one)) (?!check|see|find|know|"
            r"tell|list|look|show|view|figure|determine|verify|inspect|diagnose|troubleshoot|debug|"
            r"identify|investigate|monitor|get\b)"
        ),
        (
            r"\b(?:fastest|cheapest|nearest|coolest|strongest|tallest|richest|"
            r"safest|funniest|tastiest)\b|"
            r"\bat work\b|\bis (?:the )?better\b|\blog my\b|\bmy hours\b|\bin town\b|"
            r"\bnear me\b|\bof you\b|\bfor (?:kids|dummies|beginners|sale|lunch|dinner)\b|"
            r"\babout (?:love|life|yourself)\b"
        ),
        r"\bwhat (?:is|are|was|were) an? (?!the\b)",
        (
            r"\bwhat (?:does|do|did) .*\b(?:mean|stand for)\b|\bmeaning of\b|\bdefine\b|"
            r"\bdefinition\b|\bstands? for\b"
        ),
        r"\bwhat .*\bby default\b|\bdefault (?:port|path|value) (?:of|for)\b",
        r"\bdifferences? between\b|\bpros and cons\b|\bcompared? (?:to|with)\b",
        (
            r"\bhow (?:does|do) (?:\S+ ){1,3}works?\b|\bhow (?:is|are) \S+ (?:made|invented|"
            r"calculated|implemented|written)\b"
        ),
        r"\b(?:who|when|where) .*\b(?:invented|invent|founded|composed|painted|wrote|discovered|married)\b",
        (
            r"\b(?:scripts?|functions?|code|regex|one liner|oneliner|cron job|command|playbook|"
            r"dockerfile|program) (?:to|that|for|which will)\b"
        ),
        (
            r"\bshould i (?:buy|use|get|learn|choose|pick|eat|wear)\b|\bwhich .* should i\b|"
            r"\bi (?:forgot|lost) my\b"
        ),
        (
            r"\btell me (?:a|an|something|everything|more)\b|\btell me about (?!the|our|my|this|"
            r"errors|problems|<pid>|<port>)|\bteach\b"
        ),
        (
            r"\bwhat (?:is|are) <(?:unit|path|quantity)(?::\S*)?> ?(?:for|used for)?$|"
            r"\bexplain (?:to me )?(?:what|how|the concept|the difference)\b"
        ),
        r"\b(?:in|to|into) (?:german|french|english|plain english|spanish|\w+ese)\b",
        (
            r"\bhistory of (?:the |linux|unix|computers?|\w+ing\b)|\bmemory (?:lane|card|palace|stick|"
            r"games?|verse)\b|\bmemor(?:y|ies) of (?!the|this|that|our|my|server|machine|box|"
            r"host|vm|<|process|all)|\bby heart\b|\bin memory of\b"
        ),
        (
            r"\bport (?:wine|authority|city|of)\b|\broom service\b|\bcustomer service\b|"
            r"\bservice (?:dog|charge|fee|center|centre|station|level)\b"
        ),
        (
            r"\b(?:gift|birth|stock|share|savings) certificates?\b|\bcertificates? of (?:birth|"
            r"deposit|completion|achievement|insurance|death|marriage|attendance|origin)\b"
        ),
        (
            r"\bnetwork (?:marketing|effects?|tv|television)\b|\bsocial networks?\b|"
            r"\bneural networks?\b|\bupdate (?:me|us) (?:on|about)\b|\bboot ?camps?\b|"
            r"\bhiking boots?\b|\bdisk golf\b|\bslipped dis[ck]\b"
        ),
        (
            r"\b(?:log|ski|beach) (?:cabin|home|fire|house)s?\b|\bpackage (?:deal|tour|holiday|"
            r"delivery|tracking)\b|\bmy (?:package|parcel|order|car|phone|bike|knee|back|shoes?|"
            r"boots?|book|homework|resume|cv)\b"
        ),
        (
            r"\bwork ?load (?:at work|balance)\b|\blife\b|\bload of (?:laundry|bread)\b|\bwashing\b|"
            r"\blaundry\b|\btruck\b"
        ),
    )
)


def is_foreign(text: str) -> bool:
    """Whether a word has letters that English words do not have; capitalized names may have them."""
    return any(
        not word.isascii()
        and len(word) > 2
        and (word[0].islower() or not word[0].isupper() or ord(word[0]) > _LATIN)
        for word in re.findall(r"[^\W\d_]+", text)
    )


def is_other_talk(tokens: Sequence[Token]) -> bool:
    """Whether the prompt is about another subject, or about a concept instead of this machine."""
    if any(token.text in OFF_TOPIC or token.text in FOREIGN for token in tokens):
        return True
    text = " ".join(token.text for token in tokens if token.text not in ",.;:!?")
    return _is_definition(text) or any(pattern.search(text) for pattern in _OTHER_TALK)


def _is_definition(text: str) -> bool:
    """Whether it asks for a concept, `what is a zombie process`, and not for a state."""
    found = _DEFINITION.fullmatch(text)
    return found is not None and not any(
        word in _STATES or word.endswith(("ing", "ed", "able", "est")) for word in found["what"].split()
    )
