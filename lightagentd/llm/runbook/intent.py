"""Recognizes requests to change or to make something, so that no runbook answers them.

Works clause by clause on the words of a prompt after `arguments.extract`: argument placeholders such as
`<unit:nginx>` are among them. Nothing here knows a skill.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lightagentd.llm.runbook.tokens import BREAKS, QUESTIONS, Token, clauses_of
from lightagentd.llm.runbook.vocabulary import CHANGE_VERBS, VERB_NOUNS, words
from lightagentd.llm.runbook.wording import stem


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
    reboot restart update upgrade patch renew install apply worry order add extend expand increase replace
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
_WANTS_MORE = re.compile(
    r"^(?:can|could|may) (?:we|i) (?:have|get) (?:more|another|some)\b|"
    r"^(?:(?:we|i|it|they|you|<unit>|the \w+|this \w+) )?(?:need|needs|want|wants|could use) "
    r"(?:more|another|additional|extra|bigger|a new|a bigger|a larger)\b"
)
_WANTS_DONE = re.compile(
    r"^(?:i|we) (?:would |'d |really )?(?:like|want|need|wish) (?!to\b)(?!.*\b(?:which|what|who|"
    r"how|if|whether|list|report|of)\b)"
    r".*\b(\w+ed)(?: (?:to|on|in|from|at|by|now|please|again|tonight|asap|within|before|after|and)\b.*)?$"
)
_WISHING = words("i we get need want please someone somebody <unit> the")
_IF_THEN = re.compile(
    r"^(?:if|when|once|as soon as) (?!must|do|does|did|is|was|will|should|can|has)"
    r".* (\w+) (?:it|them|the|this|that|all|<unit>)\b"
)
_TOLD_TO = re.compile(r"^(?:ask|tell|instruct|order|force|cause|allow|get) (?:\S+ ){1,3}to (\w+)")
_BE_DONE = re.compile(
    r"\b(?:should|must|shall|has to|have to|needs? to|ought to|wants? to|can|could) be (?:\w+ly )?(\w+)"
)
_CHANGES = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"^(?:run|perform|execute|trigger|launch|kick off|initiate) (?:a|an|the|another|some|my|"
            r"our|full|all) "
        ),
        (
            r"^(?!who|what|which|why|does|do|did)(?:\w+ )?(?:needs?|wants?|requires?|requests?) "
            r"(?:\S+ ){0,3}(?:access|permissions?|"
            r"rights?|accounts?|privileges)\b"
        ),
        (
            r"^give (?:me|us) (?:\S+ )?(?:root|sudo|admin) (?:access|rights)|^swap (?:the|a|an|my|"
            r"our|out|that|this|it)\b"
        ),
        (
            r"^port (?:me|my|our|us|it|this)\b|^(?:take|bring|shut|turn|switch) (?:down|offline|"
            r"online|off|out)\b|^power cycle (?:the|it|this|that|my|our|<)|^power (?:it|the \w+|"
            r"this \w+) (?:off|on|down|up)|"
            r"^route (?:the |all |my |our )?(?:traffic|packets|everything|requests)|^kick (?!s)|"
            r"^get .* (?:back )?up(?: again)?$"
        ),
        (
            r"^resolve (?:the |this |that |all |my )?(?:\w+ )?(?:incident|issue|problem|ticket|"
            r"alert|conflict|error)s?$"
        ),
        r"^(?:have|make|let) <(?:unit|path|host)> |^get <unit> to\b|^point (?!me|us|out|at)",
        (
            r"^get an? (?!list|listing|overview|report|summary|look|idea|status|picture|feel|quick|"
            r"short|sense|view)"
        ),
        r"^reboot (?:if|when|once|after|now|at|it|the|this|that|tonight)\b",
        r"^give .*\b(?:another|more|extra|additional)\b",
        r"^let (?!me\b|us\b|s\b|know)\S+ (?!know)",
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
            r"^(?:bring|put|turn|switch|set up|shut down|power off|power down|clean(?! boot| "
            r"reboot| shutdown| restart)|tidy|fail over|"
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
            r"\bset (?:up|the)\b.*\b(?:to|for)\b|\bgive (?!me |us )(?:\S+ ){1,4}(?:access|"
            r"permissions?|rights|"
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
_PROGRAMS = words(
    """
    ssh scp sftp curl wget cp mv rm ln tar gzip zip unzip mkdir touch dd mount umount apt dpkg dnf yum
    zypper rsync kernel systemd sudo su git cat ls bash sh zsh fork java python psql mysql mysqldump sshd
    cron nginx ping ping6 telnet nc dig host nslookup error fatal warning err e w
    """
)
"""What stands before the colon of a message."""
_SUBJECT_OF = words(
    "is are was were says said has had seems looks shows keeps reports went isn't wasn't hasn't"
)
"""After one of these words a change verb was a noun: `backup says`, `mount is gone`."""
_ASKED = re.compile(
    r"^(?:hi |hey |hello |ok |so |please |and |then )*(?:can|could|would|will) (?:you|u|ya|"
    r"somebody|someone|anybody|anyone)"
    r"(?: please| pls| kindly| maybe| perhaps| also| quickly| just| then| possibly| briefly| "
    r"again| first| now| "
    r"still| actually| at least| all| by chance)* (?P<verb>[a-z']+)"
)
_LOOKING = words(
    """
    check show list tell find look see give get report break shed split diagnose investigate inspect
    verify review examine audit test count print summarize summarise analyze analyse scan explain figure
    determine identify confirm display describe dig search grep help say know have take do run make
    provide prepare compile create pull fetch read watch troubleshoot debug trace track spot point walk go
    reach ping resolve connect be access detect discover evaluate assess estimate measure enumerate query
    view peek poke try double cross recheck double-check gather collect catch locate pinpoint narrow nail
    sort work rule shed throw send lookup probe survey validate think remember notice hear recognize
    interpret clarify judge rate rank map trace crosscheck please me us the what who why if whether which
    how where when any talk use present generate produce sum mind like care want need spare keep bring let
    let's handle advise quickly tail head browse skim parse
    """
)
"""What somebody who is asked for something may be asked for without changing anything."""
_NOUN_VERBS = words(
    "update upgrade patch reboot restart boot mount lock backup cache block mail power page "
    "partition release start "
    "deploy build import export log switch move format swap commit service process shutdown install"
)
_DENIALS = words("don't dont without never not")
_LONG_DENIALS = [["do", "not"], ["no", "need"], ["please", "don't"], ["please", "dont"], ["instead", "of"]]
"""A clause that begins so forbids a change instead of asking for it."""
_REPORTS = re.compile(
    r"^(?:compile|create|generate|make|draw up|write up|build|produce|prepare|run|start|do|send|"
    r"send me|perform|execute) "
    r"(?:me |us |up )?(?:an? |the )?(?:\w+ ){0,2}(?:list|listing|report|overview|summary|"
    r"inventory|breakdown|check|"
    r"analysis|audit|diagnosis|diagnostics?|scan|test|status|health check)\b(?! script| job| function)"
)
"""An order to make one of these changes nothing."""


def asks_to_change(tokens: Sequence[Token]) -> bool:
    """Whether any clause of the prompt asks to modify something, or to make something."""
    texts = {token.text for token in tokens}
    if "busy" in texts and tokens[0].text in ("umount", "unmount"):
        return False  # the message of umount(8), pasted
    return any(_clause_changes(clause, "?" in texts) for clause in clauses_of(_without_messages(tokens)))


def _without_messages(tokens: Sequence[Token]) -> list[Token]:
    """The tokens without pasted messages of programs: `cp: error writing ...`."""
    kept = list(tokens)
    for at in range(len(tokens) - 1, 0, -1):
        program, mark = tokens[at - 1], tokens[at]
        if mark.text == ":" and (program.word in _PROGRAMS):
            end = next((n for n in range(at + 1, len(kept)) if kept[n].text in BREAKS), len(kept))
            del kept[at - 1 : end]
    return kept


def _clause_changes(clause: Sequence[Token], is_question: bool) -> bool:
    words = [token.text for token in clause]
    if is_question and words in (["reboot"], ["shutdown"], ["crash"], ["upgrade"], ["update"], ["mount"]):
        return False
    if len(words) > 1 and words[1] in ("if", "when", "once", "until") and words[0] in CHANGE_VERBS:
        return True
    if words[0] in _RAW_COMMANDS and not (len(words) > 1 and words[1] in VERB_NOUNS):
        return not (len(words) > 1 and set(words[1:]) & VERB_NOUNS) or words[0] in ("rm", "dd", "mkfs")
    if words[0] in _DENIALS or words[:2] in _LONG_DENIALS:
        return False
    asked = _ASKED.match(" ".join(words))
    if asked and asked["verb"] not in _LOOKING and not asked["verb"].endswith("ly"):
        return True
    rest, advice = _strip_prefixes(words)
    if not rest:
        return words[-1] in ("update", "upgrade") or False
    if advice and rest[0] in _ADVISABLE and ("<unit>" not in rest or "after" in rest):
        return False
    text = " ".join(rest)
    if _REPORTS.search(text):
        return False
    if rest[0] == "free" and rest != words and words[0] in ("can", "could", "please", "would", "will", "pls"):
        return True
    if any(pattern.search(text) for pattern in _CHANGES) or any(
        pattern.search(" ".join(words)) for pattern in _CHANGES[-4:]
    ):
        return not (advice or (is_question and rest == words and rest[0] in ("updates", "upgrades")))
    if "mind" in words[:3] and stem(rest[0]) in _VERB_STEMS:
        return True
    if rest[0] in CHANGE_VERBS and not _is_noun(rest):
        return True
    if _wishes(words, rest):
        return True
    return not is_question and _ends_with_order(rest)


def _wishes(words: list[str], rest: list[str]) -> bool:
    """Whether it is a wish for a change: `I want it stopped`, `it should be removed`."""
    text = " ".join(words)
    if words[0] in _WISHING and _PARTICIPLES.search(text):
        return True
    told = _TOLD_TO.search(" ".join(rest)) or _IF_THEN.search(text)
    if _WANTS_MORE.search(text) or (told is not None and told[1] in CHANGE_VERBS):
        return True
    done = _WANTS_DONE.search(text) or (_BE_DONE.search(text) if words[0] not in QUESTIONS else None)
    if done is not None and stem(done[1]) in _VERB_STEMS:
        return True
    return (
        rest[0] in ("have", "get", "want", "need", "see")
        and any(word.endswith("ed") and stem(word) in _VERB_STEMS for word in rest[2:])
        and (rest != words or words[0] != "have")
    )


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


_STARTED = words("operation request job limit up timeout")
_OPENED = words(
    "ports files sockets connections handles file port tcp udp listening descriptors network sessions session"
    " logins shares services"
)
_TOPICS = words("update upgrade patch reboot restart backup power start")
"""Verbs that are also what a report is about: `update status`, `reboot history`."""
_THINGS = words("boot mount lock format cache block limit mail")
"""Like `_TOPICS`, and parts are named after them: `boot loader`, `mount point`."""
_PARTS = words("point loop loops file files server supply loss device devices up")
_OBJECTS = words("service daemon log logs process config space check")
_ENDING = words("delete remove clear fix rotate kill empty")
"""Verbs that are never a noun before one of VERB_NOUNS."""


def _is_noun(words: list[str]) -> bool:
    """Whether a change verb at the start is a noun or an adjective here: `open ports`, `reboot history`."""
    first, after = words[0], words[1:]
    second = after[0] if after else ""
    if first == "page" or (first == "start" and second in _STARTED):
        return True
    if (first in _NOUN_VERBS and _SUBJECT_OF & set(after[:2])) or (
        first == "partition" and {"full", "usage", "space", "left"} & set(after)
    ):
        return True
    if first == "open":
        return second in _OPENED and not (second == "port" and "<port>" in after)
    if first in _THINGS and second in _PARTS:
        return True
    if first in _TOPICS | _THINGS:
        return second in VERB_NOUNS
    return second in VERB_NOUNS - _OBJECTS and first not in _ENDING


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
