"""What people write beside a question: forms of address, reasons, tickets, and words that nobody knows.

Examples are learned with some of it too, so that words which say nothing of the question count little.
"""

from __future__ import annotations


def _split(text: str, mark: str | None = None) -> list[str]:
    return text.replace("\n", "" if mark else " ").split(mark)


_BEFORE = _split(
    """
hey bot,|dear colleague,|ok so|hi robot:|computer,|right then,|quick one:|sorry to bother you but|
assistant:|it is me again,|good morning, my friend,|on call here.|hope you are well.|listen,|
before i go home:|boss asks:|ticket {number}:|re: {number},|{word},|dear {word},|hello {word},|
this is {word}.|@{word}|{word} here,|lieber {word},|na du,|mal eben|chère {word},|bonjour {word},|
oye amigo,|por favor amigo,|so|well,|erm|um,
""",
    "|",
)
_AFTER = _split(
    """
my dear friend|kthxbye|asap|urgent!!|, mate|, dude|, buddy|, boss wants to know|for the meeting|tia|
lol|, dear {word}|{word}|, {word}|({word})|pretty please with sugar on top|if you have a minute|
and make it quick|, as always|, regards {word}|- {word}|for {word}|, {word} {other}|
, sent from my phone|before lunch|, i promise it is the last question|, old friend|, my friend|
, sir|folks|team|, robot|ticket {number}|!!! {word}|, danke dir {word}|, mein freund|, mon ami|
, amigo|, meu caro|, says {word}|, {word} is waiting
""",
    "|",
)
_ONSETS = _split("b bl br ch d dr f fl g gr h j k kl l m n p pl qu r s sch sl sp st t tr v w x z")
_MIDDLES = _split("a e i o u y ai ea ee io oo ou")
_ENDS = _split("b ck d ft g l ll m mp n nd ng nk p ph r rt s sh st t tz x zz")


def aside(number: int) -> tuple[str, str]:
    """What stands before and behind a question; one of them is empty. The same number gives the same."""
    before = number % 3 == 0
    shapes = _BEFORE if before else _AFTER
    filled = shapes[(number // 3 if before else number) * 11 % len(shapes)].format(
        word=_word(number), other=_word(number * 31 + 7), number=10_000 + number * 7919 % 90_000
    )
    return (filled, "") if before else ("", filled)


def _word(number: int) -> str:
    """A word that does not exist."""
    seed, word = number * 2654435761 & 0xFFFFFFFF, ""
    for _ in range(2 + seed % 2):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        pick = seed >> 8
        word += _ONSETS[pick % len(_ONSETS)] + _MIDDLES[pick // 64 % len(_MIDDLES)]
    return word + _ENDS[seed % len(_ENDS)]
