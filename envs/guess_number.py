"""guess-number-v0: find a hidden number by guessing; each wrong guess is answered with higher or lower.

Roles     guesser_0 .. guesser_{N-1}, N from 1 to 8 (argument `guessers`, default 1), who guess in turn.
Problem   the episode's generator draws the number evenly from `low` to `high` (default 1 to 100). Each guesser has
          `guesses` guesses (default 10). With `hints=True` the answer to a wrong guess is higher or lower, meaning that
          the hidden number is, else just wrong.
Actions   a whole number from `low` to `high`: alone, in brackets, or in a line `ACTION: 50`. A number that was guessed
          before, or that the hints exclude, is legal and wasted.
Rewards   one guesser alone: 1 for finding it at the first guess, 1/guesses less for each guess more, 0 for not finding
          it. Worked: of 10 guesses the fourth finds it, 1 - 3/10 = 0.7. On 1 to 7 bisection needs 1, 2 or 3 guesses for
          1, 2 and 4 numbers, 17/7 on average: with guesses=3 it gets (1 + 2 * 2/3 + 4 * 1/3) / 7 = 0.5238. Several
          race: the finder gets +1, the others together -1; nobody found it, 0 each. Worked: three guessers, the second
          finds it: -0.5, +1, -0.5.
Illegal   under `forfeit` a guesser drops out and pays 1, to the others in a race, who play on. The last who is left of
          a race wins it. `skip` uses up the guess.
Ends      when it is found, or when nobody has a guess left. The number is told in the outcome.
Sees      everybody all guesses and answers; nobody the number.
Exploits  alone: none known; no way of guessing finds it in fewer guesses on average than bisection. With hints=False
          nothing but luck. In a race halving is no good plan: it hands the opponent what is left. Of two players
          whoever faces an odd count n of candidates wins (n + 1) / 2n with a guess that leaves an even count on both
          sides, of an even count 1/2 (`parity` plays that), so luck decides most races: count wins over many games,
          with seats swapped. Guessers who help each other (one wastes guesses, to pass on hints) can't be told from
          weak ones.
Baseline  `bisection` guesses the middle of what is left; `parity` is the best play of a race of two with guesses
          enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_arena.arguments import flag, whole
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, read_choice, strip_thinking
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

MOST = 1_000_000
HIGHER, LOWER, WRONG = "higher", "lower", "wrong"
_NUMBER = re.compile(r"(?<![\w.,-])[0-9]{1,7}(?![\w]|[.,][0-9])")
_DIFFERENT = 50
ASK = "Your guess. Reply with one number."


def read_number(reply: Reply, low: int, high: int) -> int:
    """Returns the whole number that `reply` answers: alone, in brackets, or in a line `ACTION: 50`.

    >>> read_number(Reply("Between 1 and 100, so [50]"), 1, 100)
    50

    Raises:
        IllegalReply: there is none, there are two different ones, or it is out of the range.
    """
    # thoughts may hold as many numbers as they like
    found = dict.fromkeys(_NUMBER.findall(strip_thinking(reply)))
    if len(found) > _DIFFERENT:
        raise IllegalReply(Cause.UNPARSABLE, _hint(low, high))
    inside = [number for number in found if low <= int(number) <= high]
    try:
        return int(read_choice(reply, inside, [number for number in found if number not in inside]))
    except IllegalReply as bad:
        raise IllegalReply(bad.cause, _hint(low, high)) from bad


def _hint(low: int, high: int) -> str:
    return f"Reply with one whole number from {low} to {high}."


def numbers_pattern(low: int, high: int) -> str:
    """Returns a regular expression of the whole numbers from `low` to `high`, without leading zeros.

    >>> numbers_pattern(1, 100)
    '[1-9]|[1-9][0-9]|100'
    """
    parts: list[str] = []
    while low <= high:
        # the widest block that begins at low: its last digits run freely
        free = 0
        while low and low % 10 ** (free + 1) == 0 and low + 10 ** (free + 1) - 1 <= high:
            free += 1
        width = 10**free
        digit = low // width % 10
        last = min(digit + (high - low + 1) // width - 1, 9)
        head = str(low)[: len(str(low)) - free - 1]
        first = str(digit) if last == digit else f"[{digit}-{last}]"
        parts.append(head + first + ("[0-9]" if free == 1 else f"[0-9]{{{free}}}" if free else ""))
        low += (last - digit + 1) * width
    return "|".join(parts)


def candidates(facts: Json) -> Sequence[int]:
    """Returns the numbers that the answers so far leave, in order."""
    low, high = facts["low"], facts["high"]
    wrong = set()
    for guess, answer in facts["answers"]:
        if answer == HIGHER:
            low = max(low, guess + 1)
        elif answer == LOWER:
            high = min(high, guess - 1)
        else:
            wrong.add(guess)
    return [number for number in range(low, high + 1) if number not in wrong] if wrong else range(low, high + 1)


def bisection(view: View, rng: np.random.Generator) -> str:
    """Guesses the middle of what is left."""
    left = candidates(view.facts)
    return str(left[(len(left) - 1) // 2])


def parity(view: View, rng: np.random.Generator) -> str:
    """Guesses nearest to the middle so that of an odd count an even count is left on both sides."""
    left = candidates(view.facts)
    middle = (len(left) - 1) // 2
    return str(left[middle if middle % 2 == 0 or len(left) % 2 == 0 else middle - 1])


class GuessNumber(ArenaEnv):
    """One or more guessers look for a hidden number; wrong guesses are answered with higher or lower.

    Args:
        low: the smallest number, from 0.
        high: the greatest number, above `low`, at most a million.
        guesses: how many guesses each guesser has.
        hints: whether a wrong guess is answered with higher or lower.
        guessers: how many seats guess in turn, 1 to 8.
        options: those of `ArenaEnv`; `max_turns` leaves room for all guesses.

    Raises:
        UsageError: an argument is out of its range.
    """

    id = "guess-number-v0"
    summary = "Find a hidden number by guessing; wrong guesses are answered with higher or lower."
    roles = {"guesser": (1, 8)}
    hidden = ("secret",)
    baselines = {"parity": parity, "bisection": bisection}

    def __init__(
        self, *, low: int = 1, high: int = 100, guesses: int = 10, hints: bool = True, guessers: int = 1, **options: Any
    ) -> None:
        whole(self.id, "low", low, 0, MOST - 1)
        whole(self.id, "high", high, 1, MOST)
        whole(self.id, "guesses", guesses, 1, 1000)
        if low >= high:
            raise UsageError(f"{self.id}: low={low}, high={high}; expected low below high")
        flag(self.id, "hints", hints)
        if options.get("max_turns") is None and isinstance(guessers, int):
            options["max_turns"] = max(1, guessers * guesses)  # a bad number of guessers is told below
        super().__init__(counts={"guesser": guessers}, **options)
        self.low, self.high, self.guesses, self.hints = low, high, guesses, hints
        self.zero_sum = guessers > 1 and self.illegal != "penalty"
        self.pattern = numbers_pattern(low, high)

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the number and asks the first guesser."""
        self.answers: list[tuple[int, str]] = []
        self.used = dict.fromkeys(self.possible_agents, 0)
        self.deal(rng)
        alone = len(self.possible_agents) == 1
        hinted = "Each wrong guess is answered with higher or lower. " if self.hints else ""
        for seat in self.possible_agents:
            who = f"You are {seat}. {len(self.possible_agents)} guessers take turns; the first to find it wins. "
            self.tell(
                seat,
                f"Find the hidden number, from {self.low} to {self.high}. {'' if alone else who}{hinted}"
                f"You have {self.guesses} guesses.{' ' + ASK if alone else ''}",
            )
        first = self.possible_agents[0]
        if not alone:
            self.tell(first, ASK)
        return first

    def deal(self, rng: np.random.Generator) -> None:
        """Draws the number."""
        self.secret = int(rng.integers(self.low, self.high + 1))

    def knows(self, seat: str) -> Json:
        """Returns the answers so far, the same for every seat."""
        return {"answers": self.answers}

    def grammar(self, seat: str) -> Json:
        """Returns a regular expression of the numbers in the range."""
        return self.pattern

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a number from the whole range."""
        return str(rng.integers(self.low, self.high + 1))

    def facts(self, seat: str) -> Json:
        """Returns the range, the seat's guesses left, and all guesses with their answers."""
        return {
            "low": self.low,
            "high": self.high,
            "guesses_left": self.guesses - self.used[seat],
            "answers": [list(answer) for answer in self.answers],
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes one guess."""
        guess = read_number(reply, self.low, self.high)
        self.used[seat] += 1
        if guess == self.secret:
            return self._found(seat, f"{seat} finds {guess} at guess {self.used[seat]}", guess)
        answer = WRONG if not self.hints else HIGHER if guess < self.secret else LOWER
        self.answers.append((guess, answer))
        said = f"{guess} is wrong" + (f": the number is {answer}" if self.hints else "")
        self.tell([other for other in self._playing() if other != seat], f"{seat} guesses: {said}.")
        left = self.guesses - self.used[seat]
        again = f" {ASK}" if left and len(self.possible_agents) == 1 else ""
        self.tell(seat, f"{said}. Guesses left: {left}.{again}")
        return self._pass_on(seat, guess)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """A guesser drops out; the others of a race play on, and the last one wins."""
        others = [other for other in self._playing() if other != seat]
        if not others:
            return super().forfeit(seat, cause)
        rewards = {seat: -self.forfeit_cost} | {other: self.forfeit_cost / len(others) for other in others}
        reason = f"forfeit: {seat} gave {cause} reply"
        if self.overflow_seat == seat:  # the episode ends here, nobody is asked
            return Move(rewards=rewards)
        if len(others) == 1:
            return Move(rewards=rewards, outcome=self._outcome(others[0], reason, [*others]))
        rest = self._pass_on(seat, None, leaving=(seat,))
        return Move(rewards=rewards, leaves=[seat], next=rest.next, outcome=rest.outcome)

    def skip(self, seat: str) -> Move:
        """The guess is used up."""
        self.used[seat] += 1
        return self._pass_on(seat, None)

    def describe(self) -> str:
        """Returns the number."""
        return f"the number is {self.secret}"

    def _playing(self) -> list[str]:
        return [seat for seat in self.agents if not self.terminations[seat]]

    def _pass_on(self, seat: str, guess: int | None, leaving: Sequence[str] = ()) -> Move:
        """Asks the next guesser who has a guess left, or ends the game."""
        staying = [other for other in self._playing() if other not in leaving]
        after = [other for other in staying if self.possible_agents.index(other) > self.possible_agents.index(seat)]
        for other in [*after, *staying]:
            if self.used[other] < self.guesses:
                if other != seat or guess is None:
                    self.tell(other, ASK)
                return Move(next=other, action=guess)
        return Move(outcome=self._outcome(None, f"no answer: not found, it was {self.secret}", staying), action=guess)

    def _found(self, seat: str, reason: str, guess: int) -> Move:
        playing = self._playing()
        others = [other for other in playing if other != seat]
        if len(self.possible_agents) == 1:
            rewards = {seat: 1 - (self.used[seat] - 1) / self.guesses}
        else:
            rewards = {seat: 1.0} | {other: -1 / len(others) for other in others}
        return Move(rewards=rewards, outcome=self._outcome(seat, reason, playing), action=guess)

    def _outcome(self, winner: str | None, reason: str, staying: Sequence[str]) -> Outcome:
        """Ranks the finder first, then those who stayed, then those who dropped out."""
        ranks = {
            seat: (1 if winner in (None, seat) else 2) if seat in staying else 1 + len(staying)
            for seat in self.possible_agents
        }
        scores = {seat: float(seat == winner) for seat in self.possible_agents}
        draw = winner is None and len(self.possible_agents) > 1
        return Outcome(winners=[winner] if winner else [], ranks=ranks, draw=draw, reason=reason, scores=scores)
