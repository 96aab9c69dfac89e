"""Tells a question about the machine from a request to change something and from talk about something else.

Works on the words of a prompt after `arguments.extract`: argument placeholders such as `<unit:nginx>` stand
among them. Nothing here knows a skill.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightagentd.llm.wording import CHANGE_VERBS, OFF_TOPIC, VERB_NOUNS, stem, words

_TOKEN = re.compile(
    r"<(?P<kind>[a-z]+)(?::(?P<original>[^<>\s]*))?>|(?P<word>[A-Za-z0-9][A-Za-z0-9'_+]*)|"
    r"(?P<mark>[.,;:!?])"
)
_BREAKS = words(
    """
    , . ; : ! ? and then but because so or also & plus
    """
)
_QUESTIONS = words(
    """
    what who whom whose which why how when where is are was were did does do has have had can any
    anything anyone anybody check show list tell find look see give display get diagnose inspect verify
    review examine audit report investigate test status count print summarize analyze scan currently now
    """
)


def _split(text: str) -> list[str]:
    return text.split("|")


_PREFIXES = sorted(
    (
        tuple(phrase.split())
        for phrase in _split(
            "please | pls | plz | kindly | hey | hi | hello | yo | ok | okay | well | um | now | just | "
            "quickly | quick | first | next | finally | can you | could you | would you | will you | "
            "can u | could u | i want you to | i need you to | i would like you to | would you mind | "
            "mind | can somebody | can someone | can anyone | can anybody | could somebody | could "
            "someone | i want to | i need to | i would like to | i wanna | i have to | we need to | we "
            "want to | we have to | we should | you should | you must | you need to | you have to | let "
            "us | lets | let's | help me | help me to | help us | help | go ahead and | go ahead | try "
            "to | try | make sure to | remember to | don't forget to | do not forget to | how do i | "
            "how do you | how do we | how can i | how can we | how would i | how should i | how to | "
            "how could i | what is the best way to | what is the easiest way to | is there a way to | "
            "is it possible to | is it safe to | is it ok to | is it okay to | time to | should i | "
            "should we | can i | can we | could i | could we | may i | shall i | shall we | do i need "
            "to | do we need to | do i have to | do we have to | bot | agent | ops | mate | dear | dude "
            "| buddy | friend | sir | again | immediately | asap | i want | i need | we need | we want "
            "| i would like | automatically | go | sudo | systemctl | service | apt | apt get | "
            "aptitude | yum | dnf | zypper | pacman | snap | docker | kubectl | start to | begin to | "
            "safely | simply | maybe | also | would it be possible to | feel free to "
        )
    ),
    key=len,
    reverse=True,
)
"""What may stand before the verb of an order."""
_ADVICE = frozenset(
    tuple(phrase.split())
    for phrase in (
        "should i",
        "should we",
        "do i need to",
        "do we need to",
        "do i have to",
        "do we have to",
        "shall we",
        "shall i",
    )
)
_ADVISABLE = words(
    """
    reboot restart update upgrade patch renew install apply worry
    """
)
"""Whether these should be done is a question about the machine: `do we need to reboot`."""
_VERB_STEMS = frozenset(stem(verb) for verb in CHANGE_VERBS)
_RAW_COMMANDS = words(
    """
    rm mkfs mkfs.ext4 dd chmod chown useradd userdel usermod groupadd passwd visudo fdisk parted mkswap
    swapon swapoff killall pkill kexec iptables nft shutdown poweroff halt reboot
    """
)
_PARTICIPLES = re.compile(
    r"\b(?:want|need|get|like|must|should|have|has)\b.*?\b(?:be |to be )?(?:restarted|stopped|"
    r"started|deleted|removed|installed|uninstalled|killed|rebooted|upgraded|updated|disabled|"
    r"enabled|fixed|cleared|cleaned|renewed|rotated|created|added|reloaded|gone|purged|blocked|"
    r"unblocked|mounted|unmounted|terminated)\b"
)
_CHANGES = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"^(?:do|run|perform|start|execute|make|get) (?:the |an? |all |some |pending |security |"
            r"system |package |software |apt |latest )*(?:updates?|upgrades?|updating|patch(?:es|ing)|"
            r"cleanup|reboot|restart|backup)$"
        ),
        (
            r"^get (?:me |us )?(?:a|an|another) new\b|^free (?:port|<port>)|"
            r"^(?:the )?<unit> needs (?:a |to be |to )?(?:restart|reload|reboot)"
        ),
        r"\b(?:e-?mail|mail) (?:me|us|it|him|her|them|bob)\b|^e-?mail (?:the|a|an)\b",
        r"^make (?!sure|certain)",
        r"^<unit> (?:<flag>|(?:run|exec|pull|push|compose|create)\b)",
        r"^get (?:us |me )?(?:some )?more\b|^get rid of\b",
        r"^get .*\b(?:running|back|working|started|going|fixed|installed|up again)\b",
        r"^free (?:up|some|more|me|the)\b|^free \w+ (?:up|on|in)\b",
        (
            r"^(?:take|bring|put|turn|switch|set|kick|log|sign|cut|spin|fire|tear|roll|scale|shut|"
            r"power|back|clean|clear|let|have) (?:\S+ )*(?:down|up|off|on|out|back|offline|online|"
            r"start|stop|restart)$"
        ),
        (
            r"^(?:bring|put|turn|switch|set up|shut down|power off|power down|clean|tidy|fail over|"
            r"failover|tear down|spin up|fire up|roll back)\b"
        ),
        r"^(?:update|upgrade|updating|upgrading)$",
        r"^(?:the |an |all |any |a |some |pending |security |latest )*(?:upgrade|update)$",
        (
            r"^apply\b|^hook up\b|^hand over\b|^shell into\b|^(?:ssh|<unit>) (?:in)?to\b|^log (?:me|"
            r"into|in to|out)\b|^sign me\b|^login (?:to|as)\b"
        ),
        (
            r"^(?:stop|start|restart|reload|enable|disable|kill|mask|unmask)(?: it)?(?: please| pls|"
            r" now| again)?$"
        ),
        (
            r"\bset (?:up|the)\b.*\b(?:to|for)\b|\bgive \S+ (?:\S+ )?(?:access|permissions?|rights|"
            r"sudo|root)\b|\b(?:alert|notify|page|email|text|remind|call|ping) (?:me|us)\b"
        ),
        (
            r"^(?:let me know|tell me|warn me|wake me) (?:when|if|once|as soon as)\b.*\b(?:reaches|"
            r"hits|exceeds|goes above|goes over|gets above)\b"
        ),
        (
            r"\b(?:want|need|like|order|ask|tell|expect)\b \S+ to (?:be )?(?:restart|stop|start|"
            r"delete|remove|install|kill|reboot|upgrade|update)\b"
        ),
        (
            r"\b(?:way|how|want|need|trying|going|safe|okay|ok|able|time|like|plan|attempt|want you|"
            r"need you) to (?:\w+ly )?(?:restart|stop|delete|remove|install|uninstall|kill|upgrade|"
            r"update|disable|enable|fix|clear|create|add|format|resize|extend|renew|clean|free up|"
            r"open|close|block|reset|change|set up|configure|increase|reduce|make|build|write|use|"
            r"exit|quit|get rid)\b"
        ),
    )
)
_OTHER_TALK = tuple(
    re.compile(pattern)
    for pattern in (
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
            r"games?|verse)\b|\bmemor(?:y|ies) of\b|\bby heart\b|\bin memory of\b"
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


@dataclass(frozen=True, kw_only=True)
class Token:
    """A word in lower case, a placeholder (`<port>`) or a mark."""

    text: str
    original: str = ""
    """The word that a placeholder stands for, if it was one."""

    @property
    def word(self) -> str:
        return self.original or self.text


def tokenize(text: str) -> list[Token]:
    """Words, placeholders and marks, in order; hyphens separate words."""
    return [
        Token(text=f"<{found['kind']}>", original=found["original"] or "")
        if found["kind"]
        else Token(text=(found["word"] or found["mark"]).lower().strip("'"))
        for found in _TOKEN.finditer(text)
    ]


def clauses_of(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens in pieces between marks and conjunctions, without these; none is empty."""
    pieces: list[list[Token]] = [[]]
    for token in tokens:
        if token.text in _BREAKS:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece for piece in pieces if piece]


def asks(tokens: Sequence[Token]) -> bool:
    """Whether the words look like a question or like an order to look at something."""
    return any(token.text in _QUESTIONS or token.text == "?" for token in tokens)


def is_other_talk(tokens: Sequence[Token]) -> bool:
    """Whether the prompt is about another subject, or about a concept instead of this machine."""
    if any(token.text in OFF_TOPIC for token in tokens):
        return True
    text = " ".join(token.text for token in tokens if token.text not in ",.;:!?")
    return any(pattern.search(text) for pattern in _OTHER_TALK)


def asks_to_change(tokens: Sequence[Token]) -> bool:
    """Whether any clause of the prompt asks to modify something, or to make something."""
    texts = {token.text for token in tokens}
    if "busy" in texts and tokens[0].text in ("umount", "unmount"):
        return False  # the message of umount(8), pasted
    return any(_clause_changes(clause, "?" in texts) for clause in clauses_of(tokens))


def _clause_changes(clause: Sequence[Token], is_question: bool) -> bool:
    words = [token.text for token in clause]
    if words[0] in _RAW_COMMANDS and not (len(words) > 1 and words[1] in VERB_NOUNS):
        return not (len(words) > 1 and set(words[1:]) & VERB_NOUNS) or words[0] in ("rm", "dd", "mkfs")
    rest, advice = _strip_prefixes(words)
    if not rest:
        return words[-1] in ("update", "upgrade") or False
    if advice and rest[0] in _ADVISABLE and "<unit>" not in rest:
        return False
    text = " ".join(rest)
    if any(pattern.search(text) for pattern in _CHANGES) or any(
        pattern.search(" ".join(words)) for pattern in _CHANGES[-4:]
    ):
        return not (advice or (is_question and rest == words and rest[0] in ("updates", "upgrades")))
    if "mind" in words[:3] and stem(rest[0]) in _VERB_STEMS:
        return True
    if rest[0] in CHANGE_VERBS and not _is_noun(rest):
        return True
    if words[0] in (
        "i",
        "we",
        "get",
        "need",
        "want",
        "please",
        "someone",
        "somebody",
        "<unit>",
        "the",
    ) and _PARTICIPLES.search(" ".join(words)):
        return True
    return not is_question and _ends_with_order(rest)


def _strip_prefixes(words: list[str]) -> tuple[list[str], bool]:
    """The words after `could you please`, and whether advice was asked (`should we`)."""
    advice = False
    while True:
        for prefix in _PREFIXES:
            if tuple(words[: len(prefix)]) == prefix:
                advice = advice or prefix in _ADVICE
                words = words[len(prefix) :]
                break
        else:
            return words, advice


def _is_noun(words: list[str]) -> bool:
    """Whether a change verb at the start is a noun or an adjective here: `open ports`, `reboot history`."""
    first, after = words[0], words[1:]
    if first == "open":
        return (
            bool(after)
            and after[0]
            in (
                "ports",
                "files",
                "sockets",
                "connections",
                "handles",
                "file",
                "port",
                "tcp",
                "udp",
                "listening",
                "descriptors",
                "network",
            )
            and not (after[0] == "port" and "<port>" in after)
        )
    if first == "page":
        return True
    if first in (
        "update",
        "upgrade",
        "patch",
        "reboot",
        "boot",
        "restart",
        "mount",
        "lock",
        "backup",
        "power",
        "format",
        "start",
        "cache",
        "block",
        "limit",
        "mail",
        "power",
    ):
        return bool(after) and (
            after[0] in VERB_NOUNS
            or (
                after[0]
                in (
                    "point",
                    "loop",
                    "loops",
                    "file",
                    "files",
                    "server",
                    "supply",
                    "loss",
                    "device",
                    "devices",
                    "up",
                )
                and first
                not in ("reboot", "restart", "start", "update", "upgrade", "backup", "patch", "power")
            )
        )
    return (
        bool(after)
        and after[0]
        in VERB_NOUNS - {"service", "daemon", "log", "logs", "process", "config", "space", "check"}
        and first not in ("delete", "remove", "clear", "fix", "rotate", "kill", "empty")
    )


_ALSO_NOUNS = words("page block partition mount lock release order call mail limit force power image")
_PLAIN_ORDERS = words("rotate prune delete vacuum purge restart uninstall cleanup")


def _ends_with_order(words: list[str]) -> bool:
    """`nginx restart`, `service nginx stop now`."""
    rest = [
        word
        for word in words
        if word not in ("now", "it", "again", "service", "the", "daemon", "unit", "server", "box", "machine")
    ]
    return len(rest) == 2 and (
        (rest[0].startswith("<") and rest[1] in CHANGE_VERBS - _ALSO_NOUNS) or rest[1] in _PLAIN_ORDERS
    )
