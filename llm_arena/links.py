"""Who heard whom: which earlier turns stand in what a turn was told.

Found in a stored trace by text: a turn's reply without its thoughts, and what the game read in it (its action), are
looked for in the messages that a later turn was told since its seat's last one; case, punctuation, quotation marks and
spaces don't count. Which reply the game was resolving when it told something would be no better answer: games hold
replies back (a debate's judge hears all statements at the end) and tell what no reply is part of, and traces don't hold
it.

A text that is short, or that its speaker could have copied from its own view, says little by itself: "bet" stands in
the rules of poker. It counts where it fills lines of its own, as a quotation does (unless it is short, and copied from
what is no reply), and behind its speaker's name, as in "player_0 bets". What the speaker was told as well, a message or
a line, was there before it replied. Of several turns with one text as many are taken as there are places: those that
are named there, then the latest. An `assistant` message is the reply to just the messages before it, where there is
one: so a harness goes on from an earlier call in another seat. So a link is seldom wrong, and is missing where a game
retells a reply in words of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from llm_arena.compaction import message_text
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.recorder import sequences
from llm_arena.types import Json, TokenSequence, Trace, Turn

_SHORT = 12
"""A text of one or two words with fewer letters and digits may well stand somewhere by chance."""

_HEAD = 30
"""So many words of a longer text are enough: games cut what is too long to be passed on."""

_LONGEST = 4000
"""So many characters of a reply are looked at; games quote no more of one."""

_FEW = 32
"""So many searches in a text cost less than an index of it."""

_WORD = re.compile(r"\w+")

_UNSAID = "not|no|never|cannot|can|could|may|might|must|shall|should|will|would|or|if|to"
"""Between a name and a text they tell what was not said, as in "player_0 may bet"."""

_ENDINGS = ("s", "es", "d", "ed")
"""Of a verb, as in "player_0 bets"."""


def links(trace: Trace) -> dict[int, list[int]]:
    """Returns, for each turn of a trace, the earlier turns whose replies stand in what it was told.

    They are turns of other seats, and of its own seat where they belong to another stream: a summary that has replaced
    its view, and replies that its template has printed anew, so that its ids don't extend theirs. Turns without any are
    left out.

    Example:
        >>> trace = llm_arena.play("debate-v0", "random-legal", seed=0)
        >>> [turn.seat for turn in trace.turns], links(trace)
        (['pro_0', 'con_0', 'pro_0', 'con_0'], {1: [0], 2: [1], 3: [2]})
    """
    listeners = {turn.seat: _Listener() for turn in trace.turns}
    said: list[_Said] = []
    speakers: dict[str, set[str]] = {}
    answers: dict[tuple[str, int, str], int] = {}
    found: dict[int, list[int]] = {}
    for turn in trace.turns:
        listener = listeners[turn.seat]
        role = turn.seat.rpartition("_")[0]
        told, heard = listener.take(turn, role, answers)
        heard.update(_standing(told, said, speakers, turn, listener.known))
        if standing := heard.union(_printed_anew(trace, turn)):
            found[turn.index] = sorted(standing)
        replies = {row for index in heard for saying in said[index].sayings for row in saying.rows}
        listener.fixed.text += told.fixed(replies).index.text
        said.append(_Said(turn, told, replies, listener))
        for saying in said[-1].sayings:
            speakers.setdefault(saying.words, set()).add(turn.seat)
        answers.setdefault((role, listener.conversation, turn.text), turn.index)
    return found


def sequence_links(trace: Trace) -> list[list[int]]:
    """Returns, for each of `sequences(trace)`, the places of those that train the replies which stand in it."""
    found = sequences(trace)
    owner = {turn: place for place, sequence in enumerate(found) for turn in sequence.turns}
    heard = links(trace)
    return [sorted(_sources(trace, sequence, heard, owner) - {place}) for place, sequence in enumerate(found)]


def _sources(trace: Trace, sequence: TokenSequence, heard: dict[int, list[int]], owner: dict[int, int]) -> set[int]:
    last = trace.turns[sequence.turns[-1]]
    # a stream holds its seat's whole view, so also what was told to earlier turns with the same view
    view = [turn.index for turn in _same_view(trace, last)] + [last.index]
    return {owner[turn] for index in view for turn in (index, *heard.get(index, ())) if turn in owner}


class _Index:
    """A text of words that may grow, and which of them are neighbours in it.

    A phrase with other neighbours is not in it. That is quick to see; searching each text for each line of each reply
    would take minutes where there are thousands of lines.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._read = 0
        self._last: list[str] = []
        self._known: set[str | tuple[str, str]] = set()
        self._asked = 0

    def may_hold(self, parts: frozenset[str | tuple[str, str]]) -> bool:
        """Returns False only if one of `parts`, words or two neighbours, is missing."""
        return self._few() or parts <= self._known

    def may_hold_any(self, words: tuple[str, ...]) -> bool:
        """Returns False only if all of `words` are missing."""
        return self._few() or not self._known.isdisjoint(words)

    def _few(self) -> bool:
        self._asked += 1
        if self._asked <= _FEW:
            return True
        if self._read < len(self.text):
            words = [*self._last, *self.text[self._read :].split()]
            self._known.update(words, pairwise(words))
            self._read, self._last = len(self.text), words[-1:]
        return False


class _Told:
    """What a turn was told since its seat's last one, in the forms in which it is searched."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        rows = [row for text in texts for row in _rows(text)]
        self.index = _Index(_flat([word for row in rows for word in row]))
        self.lines = _block(rows)
        self.plain = "\n".join(texts).casefold()
        self._without: dict[frozenset[str], _Told] = {}

    def without(self, others: _Told) -> _Told:
        """Returns what was not told to `others` in the same messages: that was there before they replied."""
        common = frozenset(self.texts) & frozenset(others.texts)
        if not common:
            return self
        if common not in self._without:
            self._without[common] = _Told([text for text in self.texts if text not in common])
        return self._without[common]

    def fixed(self, replies: set[str]) -> _Told:
        """Returns the lines that are none of `replies`: what was told by the game or harness itself."""
        lines = [line for text in self.texts for line in text.splitlines()]
        return _Told([line for line in lines if _block(_rows(line)) not in replies])


class _Listener:
    """A seat's view: what has stood in it, and which turns are known to."""

    def __init__(self) -> None:
        self.seen = _Index()
        "The words of all that the seat was ever told."
        self.fixed = _Index()
        "Those of them that are no replies."
        self.known: set[int] = set()
        self.conversation = 0
        "A digest of the messages in the view."
        self._epoch = 0
        self._replies: set[str] = set()

    def take(self, turn: Turn, role: str, answers: dict[tuple[str, int, str], int]) -> tuple[_Told, set[int]]:
        """Returns what a turn was told, without replies of its own conversation, and which of those are other seats'.

        Args:
            turn: the turn.
            role: of its seat.
            answers: the first turn of each role, conversation, and reply.
        """
        if turn.view_epoch != self._epoch:
            self._epoch = turn.view_epoch
            self.known.clear()
            self.conversation = 0
        texts: list[str] = []
        heard: set[int] = set()
        for message in turn.messages:
            text = message_text(message)
            before, self.conversation = self.conversation, hash((self.conversation, message["role"], text))
            if message["role"] == "assistant":
                if text in self._replies:
                    continue
                if (index := answers.get((role, before, text))) is not None:
                    heard.add(index)
                    continue
            texts.append(text)
        told = _Told(texts)
        self.seen.text += told.index.text
        self.known |= heard
        self._replies.add(turn.text)
        return told, heard


class _Said:
    """A turn, what it had been told, and the texts by which it may be recognised."""

    def __init__(self, turn: Turn, told: _Told, heard: set[str], listener: _Listener) -> None:
        self.turn = turn
        self.told = told
        self._heard = heard
        self._before: tuple[_Told, str] | None = None
        "What somebody was told, and the lines of the game or harness that this turn was told as well, but not there."
        try:
            reply = strip_thinking(turn.text)
        except IllegalReply:  # nothing but an unclosed thought
            reply = turn.text
        reply = reply[:_LONGEST]
        # its lines as well: a game may pass on what was said and keep the move
        texts = dict.fromkeys((reply, *_texts(turn.action), *reply.splitlines()))
        self.sayings = [_Saying(rows, listener) for text in texts if (rows := _rows(text[:_LONGEST]))]

    def places(self, saying: _Saying, told: _Told) -> int:
        """Returns in how many places of `told` a saying stands, without those that were there before."""
        count = saying.places(told)
        if count and saying.copied:
            if self._before is None or self._before[0] is not told:
                self._before = told, self.told.without(told).fixed(self._heard).lines
            count -= self._before[1].count(saying.lines)
        return count


class _Saying:
    """One text: what of it has to be found where."""

    def __init__(self, rows: list[list[str]], listener: _Listener) -> None:
        words = [word for row in rows for word in row]
        self.words = _flat(words)
        self.lines = _block(rows)
        self.rows = [_block([row]) for row in rows]
        self._head = _flat(words[:_HEAD])
        self._parts: frozenset[str | tuple[str, str]] = frozenset(pairwise(words[:_HEAD]) if words[1:] else words)
        self._short = len(words) < 3 and sum(map(len, words)) < _SHORT
        self.copied = self._stands_in(listener.seen)
        self._of_the_rules = self._stands_in(listener.fixed)
        self._spoken = " ".join(map(re.escape, words)) if self._short else ""
        self._spoken_first = (words[0],) if words[1:] else tuple(words[0] + ending for ending in ("", *_ENDINGS))

    def places(self, told: _Told) -> int:
        """Returns in how many places it stands, whoever said it."""
        if not told.index.may_hold(self._parts):
            return 0
        if not self._short and not self.copied:
            return told.index.text.count(self.words) or told.index.text.count(self._head)
        return 0 if self._short and self._of_the_rules else told.lines.count(self.lines)

    def _stands_in(self, index: _Index) -> bool:
        return index.may_hold(self._parts) and self._head in index.text

    def signed(self, told: _Told, seat: str) -> int:
        """Returns in how many places it stands behind a seat's name, or in the lines after it."""
        if seat not in told.plain:
            return 0
        behind = rf" {re.escape(seat)} (?: \w+ ){{0,2}}{re.escape(self._head)}"
        return len(re.findall(behind, told.index.text))

    def named(self, told: _Told, seat: str) -> int:
        """Returns in how many places a short text stands behind its speaker's name."""
        if not self._short or not told.index.may_hold_any(self._spoken_first) or seat not in told.plain:
            return 0
        said = f"{self._spoken}(?:{'|'.join(_ENDINGS)})?"
        behind = rf"(?<!\w){re.escape(seat)}:? (?:(?!(?:{_UNSAID}) )\w+ ){{0,2}}{said}(?!\w)"
        return len(re.findall(behind, told.plain))


def _standing(
    told: _Told, said: list[_Said], speakers: dict[str, set[str]], turn: Turn, known: set[int]
) -> Iterator[int]:
    """Yields the turns that stand in what `turn` was told, the latest first, and adds them to `known`."""
    taken: Counter[tuple[str, str, str]] = Counter()
    for one in reversed(said) if told.index.text else ():
        index, seat = one.turn.index, one.turn.seat
        if index in known or (seat == turn.seat and one.turn.view_epoch == turn.view_epoch):
            continue
        places = _places(one, told.without(one.told), speakers)
        free = next((place for place, count in places if count > taken[place]), None)
        if free is not None:
            taken[free] += 1
            known.add(index)
            yield index


def _places(one: _Said, told: _Told, speakers: dict[str, set[str]]) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Yields kinds of places (how it stands there, behind which name, its words) of a turn, and how many there are."""
    seat = one.turn.seat
    for saying in one.sayings:
        if count := one.places(saying, told):
            same = speakers[saying.words]
            signed = {name: saying.signed(told, name) for name in same} if len(same) > 1 else {}
            yield ("signed", seat, saying.words), min(count, signed.get(seat, 0))
            yield ("anybody's", "", saying.words), count - sum(signed.values())
        yield ("named", seat, saying.words), saying.named(told, seat)


def _printed_anew(trace: Trace, turn: Turn) -> Iterator[int]:
    """Yields the seat's own turns that stand in its view but whose ids are not in its stream."""
    before = [earlier for earlier in _same_view(trace, turn) if earlier.prompt_ids is not None]
    if turn.prompt_ids is None or not before or turn.extends == before[-1].index:
        return
    stream = {turn.index}
    at = turn.extends
    while at is not None and 0 <= at < min(stream):
        stream.add(at)
        at = trace.turns[at].extends
    yield from (earlier.index for earlier in before if earlier.index not in stream)


def _same_view(trace: Trace, turn: Turn) -> list[Turn]:
    """Returns the seat's turns before `turn` since its view was last replaced."""
    view = turn.seat, turn.view_epoch
    return [earlier for earlier in trace.turns[: turn.index] if (earlier.seat, earlier.view_epoch) == view]


def _texts(action: Json) -> Iterator[str]:
    if isinstance(action, dict | list):
        for value in action.values() if isinstance(action, dict) else action:
            yield from _texts(value)
    elif isinstance(action, str | int | float) and not isinstance(action, bool):
        yield str(action)


def _rows(text: str) -> list[list[str]]:
    """Returns the words of each line that has some."""
    return [row for line in text.casefold().splitlines() if (row := _WORD.findall(line))]


def _flat(words: list[str]) -> str:
    # two spaces between words, so that neighbours share none and every place is counted
    return "".join(f" {word} " for word in words)


def _block(rows: list[list[str]]) -> str:
    return "".join(f"\r{' '.join(row)}\n" for row in rows)


__all__ = ["links", "sequence_links"]
