"""prisoners-dilemma-v0: the iterated prisoner's dilemma; two players cooperate or defect, round after round.

Roles     player_0 and player_1. In each round both choose at once; nobody sees the other's choice before its own is
          made.
Actions   cooperate, defect. With `talk=True` each round begins with one message of each player, also at once: any text,
          thinking left out, of which the other is shown the first 300 characters as a quotation. Messages bind nobody.
Rewards   points, paid when a round is over. Both cooperate: `reward` (R) each; both defect: `punishment` (P) each; else
          the one who defects gets `temptation` (T) and the other `sucker` (S). Default T, R, P, S = 5, 3, 1, 0 (Axelrod
          1980); T > R > P > S and 2R > T + S are required. Worked, 10 rounds: always-defect against tit-for-tat gets 5
          + 9 * 1 = 14, tit-for-tat 0 + 9 * 1 = 9; tit-for-tat against itself 30 each. The return is the sum: divide it
          by the rounds to compare games of different length.
Noise     with `noise` = e, 0 < e <= 0.5 (default 0), each choice comes out as the other one with probability e, drawn
          anew for each choice; what came out is paid, seen and in the history. Its own player is told what it had
          chosen, the other isn't. Worked: two of tit-for-tat are equally often in each of the four states, whatever e
          is, and get (T + R + P + S) / 4 = 2.25 a round; of win-stay-lose-shift, which mends a slip in two rounds, two
          get 2.90 with e=0.02.
Ends      after `rounds` rounds (default 10). With `continuation` = c, 0.05 <= c <= 0.95 (and at most 500 `rounds`),
          each round from the last of those on is followed by another with probability c: with rounds=1 and c=0.9 a game
          has 10 rounds on average, and none is known to be the last. After round 1000 none follows, which fewer than
          one game in 10 ** 11 reaches.
Illegal   a missing choice pays its seat S (or 0, if S is more) and the other P: what always-defect is sure of anyhow,
          so that nobody gains by missing one, and making the other miss one pays no more than defecting. Under
          `forfeit` that holds for this round and all that were to come; the game ends with the phase, and is lost.
          Under `skip` it holds for this round; a missing message is silence.
Outcome   scores are the points. Winner and ranks go by points: who has more has won, though no game is won that way.
Sees      each player both choices after each round, and the rules, with `continuation` and `noise` too. How many rounds
          there will be is drawn at the start and hidden from both where `continuation` is given; which choices slip is
          drawn when both have chosen.
Exploits  winning is not the aim: always-defect never has fewer points than its opponent, hence the best rank, while two
          of them get 1 a round where cooperators get 3. Compare mean returns over many opponents, not wins. With a
          known last round defecting in it costs nothing, and by backward induction neither does defecting in all: use
          `continuation` to study cooperation. Who makes the other fail, e.g. by a message that leads it astray, has won
          the game, and P a round: no more than by defecting, but it ranks first. Read the counts of illegal replies
          beside returns and ranks. Two copies of one policy can learn to know each other and cooperate with nobody
          else; play them against the six strategies. With `noise` a defection can pass for a slip. Nothing but the
          opponent punishes a lie in a message.
Baseline  always-cooperate, always-defect; tit-for-tat (Rapoport) repeats the other's last choice; generous-tit-for-tat
          forgives a defection with probability min(1 - (T - R) / (R - S), (R - P) / (T - P)) (Nowak and Sigmund 1992),
          1/3 by default; grim-trigger defects for ever after one defection; win-stay-lose-shift (Pavlov; Nowak and
          Sigmund 1993) keeps its choice after T or R and changes it after P or S. A missing choice is a defection to
          all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from llm_arena.arguments import flag, number, whole
from llm_arena.env import ArenaEnv, Baseline
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, quote, read_choice, strip_thinking
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

C, D = "cooperate", "defect"
ACTIONS = (C, D)
OTHER = {"player_0": "player_1", "player_1": "player_0"}
MOST_ROUNDS = 1000
MOST_SURE = 500
"""With `continuation` at most so many rounds are sure, so that the end at MOST_ROUNDS plays no part."""
MOST_POINTS = 1e6
MOST_CHARACTERS = 300
"""Characters of a message that the other player is shown."""
SAYINGS = ("Let us both cooperate.", "I will cooperate.", "I will defect.", "I will do what you did last.", "Hello.")
SILENT = "I have nothing to say."


def _always_cooperate(mine: list[str], theirs: list[str], facts: Json, rng: np.random.Generator) -> str:
    return C


def _always_defect(mine: list[str], theirs: list[str], facts: Json, rng: np.random.Generator) -> str:
    return D


def _tit_for_tat(mine: list[str], theirs: list[str], facts: Json, rng: np.random.Generator) -> str:
    return theirs[-1] if theirs else C


def _generous(mine: list[str], theirs: list[str], facts: Json, rng: np.random.Generator) -> str:
    t, r, p, s = facts["payoffs"]
    forgives = rng.random() < min(1 - (t - r) / (r - s), (r - p) / (t - p))
    return C if not theirs or theirs[-1] == C or forgives else D


def _grim(mine: list[str], theirs: list[str], facts: Json, rng: np.random.Generator) -> str:
    return D if D in theirs else C


def _win_stay_lose_shift(mine: list[str], theirs: list[str], facts: Json, rng: np.random.Generator) -> str:
    # after T or R, that is if the other cooperated, the choice is kept
    return C if not mine or (mine[-1] == C) == (theirs[-1] == C) else D


STRATEGIES = {
    "always-cooperate": _always_cooperate,
    "always-defect": _always_defect,
    "generous-tit-for-tat": _generous,
    "grim-trigger": _grim,
    "win-stay-lose-shift": _win_stay_lose_shift,
    "tit-for-tat": _tit_for_tat,
}


def player(name: str) -> Baseline:
    """Returns the scripted player of a strategy. It says nothing of meaning where players talk."""
    strategy = STRATEGIES[name]

    def play(view: View, rng: np.random.Generator) -> str:
        if view.facts["talking"]:
            return SILENT
        past = view.facts["history"]
        return strategy([own or D for own, _ in past], [other or D for _, other in past], view.facts, rng)

    play.__doc__ = f"Plays {name}."
    return play


class PrisonersDilemma(ArenaEnv):
    """The iterated prisoner's dilemma: both choose at once, and see each other's choices after each round.

    Args:
        rounds: rounds that are played for sure, 1 to 1000.
        continuation: probability that another round follows each from the last of those on, 0.05 to 0.95; None: none
            follows. `rounds` is then at most 500.
        temptation: T, for defecting alone.
        reward: R, for cooperating together.
        punishment: P, for defecting together.
        sucker: S, for cooperating alone.
        talk: whether both write a message before each round.
        noise: probability that a choice comes out as the other one, 0 to 0.5.
        options: those of `ArenaEnv`; `max_turns` leaves room for all rounds.

    Raises:
        UsageError: an argument is out of its range, or the payoffs are no prisoner's dilemma.
    """

    id = "prisoners-dilemma-v0"
    summary = "The iterated prisoner's dilemma: two players cooperate or defect at once, round after round."
    roles = {"player": 2}
    simultaneous = True
    baselines = {name: player(name) for name in STRATEGIES}

    def __init__(
        self,
        *,
        rounds: int = 10,
        continuation: float | None = None,
        temptation: float = 5,
        reward: float = 3,
        punishment: float = 1,
        sucker: float = 0,
        talk: bool = False,
        noise: float = 0.0,
        **options: Any,
    ) -> None:
        whole(self.id, "rounds", rounds, 1, MOST_ROUNDS)
        if continuation is not None:
            number(self.id, "continuation", continuation, 0.05, 0.95)
            if rounds > MOST_SURE:
                raise UsageError(f"{self.id}: rounds={rounds}; with continuation expected at most {MOST_SURE}")
        self.payoffs = (temptation, reward, punishment, sucker)
        t, r, p, s = self.payoffs
        if not all(map(_number, self.payoffs)) or not t > r > p > s or not 2 * r > t + s:
            raise UsageError(
                f"{self.id}: temptation={t!r}, reward={r!r}, punishment={p!r}, sucker={s!r}; expected numbers "
                f"within {MOST_POINTS:.0f} of 0, temptation > reward > punishment > sucker and "
                "2 * reward > temptation + sucker"
            )
        flag(self.id, "talk", talk)
        number(self.id, "noise", noise, 0, 0.5)
        if options.get("max_turns") is None:
            options["max_turns"] = 2 * (1 + talk) * (rounds if continuation is None else MOST_ROUNDS)
        super().__init__(**options)
        self.rounds, self.continuation, self.talk, self.noise = rounds, continuation, talk, noise
        if continuation is not None:
            self.hidden = ("length",)

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws how many rounds there will be, tells the rules, and opens the first round."""
        self.history: list[dict[str, str | None]] = []
        self.points = dict.fromkeys(self.possible_agents, 0.0)
        self.answers: dict[str, str | None] = {}
        self.heard: dict[str, str | None] = dict.fromkeys(self.possible_agents)
        self.talking = self.talk
        self.out: dict[str, Cause] = {}
        self.deal(rng)
        for seat in self.possible_agents:
            self.tell(seat, f"{self._rules(seat)}\n\n{self._ask(seat)}")
        return list(self.possible_agents)

    def deal(self, rng: np.random.Generator) -> None:
        """Draws how many rounds there will be; without `continuation` that is known."""
        more = 0 if self.continuation is None else int(rng.geometric(1 - self.continuation)) - 1
        self.length = min(self.rounds + more, MOST_ROUNDS)

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns cooperate and defect; None while messages are written."""
        return None if self.talking else list(ACTIONS)

    def grammar(self, seat: str) -> Json:
        """Returns a regular expression of the choices, or of messages of one line."""
        return r"[^\s<>][^\n<>]{0,299}" if self.talking else "cooperate|defect"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a choice, or a message that has nothing to do with it."""
        among = SAYINGS if self.talking else ACTIONS
        return among[int(rng.integers(len(among)))]

    def facts(self, seat: str) -> Json:
        """Returns the rules, the choices of finished rounds as (own, other's), and what the other just said."""
        other = OTHER[seat]
        return {
            "talking": self.talking,
            "round": len(self.history) + 1,
            "rounds": self.rounds,
            "continuation": self.continuation,
            "noise": self.noise,
            "payoffs": list(self.payoffs),
            "history": [[chosen[seat], chosen[other]] for chosen in self.history],
            "heard": self.heard[other],
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a choice or a message; the second one of a phase ends it."""
        if not self.talking:
            return self._answered(seat, read_choice(reply, ACTIONS))
        message = strip_thinking(reply).strip()
        if not message:
            raise IllegalReply(Cause.EMPTY, f"Write a message to {OTHER[seat]}.")
        return self._answered(seat, message)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """Pays S (at most 0) for all rounds to come, the other P; the other still answers in this phase."""
        if self.overflow_seat == seat:
            return Move(rewards=self._forfeited([seat]))
        self.out[seat] = cause
        return self._answered(seat, None)

    def skip(self, seat: str) -> Move:
        """The seat chooses nothing in this round, or says nothing."""
        return self._answered(seat, None)

    def describe(self) -> str:
        """Returns the rounds so far, one a line."""
        lines = [
            f"round {number}: " + ", ".join(f"{seat} {choice or 'nothing'}" for seat, choice in chosen.items())
            for number, chosen in enumerate(self.history, start=1)
        ]
        return "\n".join(lines)

    def _answered(self, seat: str, answer: str | None) -> Move:
        self.answers[seat] = answer
        if self.pending != [seat]:
            return Move(action=answer)
        answers, self.answers = {each: self.answers[each] for each in self.possible_agents}, {}
        if self.out:
            rewards = self._forfeited(self.out)
            reason = " and ".join(f"{each} gave {cause} reply" for each, cause in self.out.items())
            return Move(rewards=rewards, outcome=self._outcome(f"forfeit: {reason}"), action=answer)
        if self.talking:
            self.talking, self.heard = False, answers
            for each in self.possible_agents:
                self.tell(each, self._ask(each))
            return Move(next=self.possible_agents, action=answer)
        return self._paid(answers, answer)

    def _paid(self, meant: dict[str, str | None], answer: str | None) -> Move:
        """Pays a round, and opens the next or ends the game."""
        chosen = {seat: self._slipped(choice) for seat, choice in meant.items()} if self.noise else meant
        rewards = {seat: self._payoff(chosen[seat], chosen[OTHER[seat]]) for seat in self.possible_agents}
        self._score(rewards)
        self.history.append(chosen)
        if len(self.history) == self.length:
            return Move(rewards=rewards, outcome=self._outcome(f"{self.length} rounds"), action=answer)
        self.talking, self.heard = self.talk, dict.fromkeys(self.possible_agents)
        for seat in self.possible_agents:
            other = OTHER[seat]
            slip = "" if chosen[seat] == meant[seat] else f" by mistake (you chose {meant[seat]})"
            self.tell(
                seat,
                f"You: {chosen[seat] or 'no choice'}{slip}. {other}: {chosen[other] or 'no choice'}. You get "
                f"{rewards[seat]:g}, {other} gets {rewards[other]:g}.\n\n{self._ask(seat)}",
            )
        return Move(next=self.possible_agents, rewards=rewards, action=answer)

    def _slipped(self, choice: str | None) -> str | None:
        """Returns what comes out of a choice; none stays none."""
        return choice if choice is None or self.rng.random() >= self.noise else (D if choice == C else C)

    def _payoff(self, mine: str | None, theirs: str | None) -> float:
        t, r, p, s = self.payoffs
        if mine is None:
            return min(s, 0.0)
        if theirs is None:
            return p
        return (r if theirs == C else s) if mine == C else (t if theirs == C else p)

    def _forfeited(self, out: Collection[str]) -> dict[str, float]:
        """Returns what the rest of the game pays when the seats in `out` have left it."""
        left = self.length - len(self.history)
        _, _, p, s = self.payoffs
        rewards = {seat: left * (min(s, 0.0) if seat in out else p) for seat in self.possible_agents}
        self._score(rewards)
        return rewards

    def _score(self, rewards: dict[str, float]) -> None:
        for seat, reward in rewards.items():
            self.points[seat] += reward

    def _outcome(self, reason: str) -> Outcome:
        """Ranks by points; who forfeits is last, whatever it has."""
        places = {seat: (seat not in self.out, points) for seat, points in self.points.items()}
        draw = len(set(places.values())) == 1 or len(self.out) == 2
        best = max(places.values())
        ranks = {seat: 1 if draw or place == best else 2 for seat, place in places.items()}
        winners = [] if draw else [seat for seat, rank in ranks.items() if rank == 1]
        return Outcome(winners=winners, ranks=ranks, draw=draw, reason=reason, scores=dict(self.points))

    def _rules(self, seat: str) -> str:
        t, r, p, s = self.payoffs
        after = "after each round" if self.rounds == 1 else f"after round {self.rounds} and each later one"
        length = f"There are {self.rounds} rounds."
        if self.continuation is not None:
            sure = "" if self.rounds == 1 else f"There are at least {self.rounds} rounds; "
            length = f"{sure}{after} another round follows with probability {self.continuation:g}."
        noise = ""
        if self.noise:
            noise = f" With probability {self.noise:g} a choice comes out as the other one, by mistake."
        return (
            f"You are {seat} and play with {OTHER[seat]}. In each round both of you choose at once: cooperate or "
            f"defect. Both cooperate: each gets {r:g}. Both defect: each gets {p:g}. If only one defects, that one "
            f"gets {t:g} and the other {s:g}. {length[0].upper()}{length[1:]}{noise} Get as many points as you can."
        )

    def _ask(self, seat: str) -> str:
        number, other = len(self.history) + 1, OTHER[seat]
        of = f" of {self.rounds}" if self.continuation is None else ""
        if self.talking:
            return f"Round {number}{of}. Before you choose, write one short message to {other}."
        if not self.talk:
            return f"Round {number}{of}. Reply with one word: cooperate or defect."
        said = self.heard[other]
        heard = "says nothing." if said is None else f"says:\n{quote(said, max_characters=MOST_CHARACTERS)}"
        return f"{other} {heard}\n\nNow choose. Reply with one word: cooperate or defect."


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_POINTS  # no NaN
