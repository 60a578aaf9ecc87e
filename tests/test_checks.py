"""`check_env` passes for every env of the shelf, and notices what it is there to notice."""

import random
import time

import pytest

import llm_arena
from llm_arena import checks
from llm_arena.env import ArenaEnv
from llm_arena.errors import EnvContractError, UsageError
from llm_arena.leaks import secrets_are_kept
from llm_arena.parsing import IllegalReply, read_choice
from llm_arena.types import Cause, Move, Outcome


@pytest.mark.parametrize("env_id", list(llm_arena.registry))
def test_every_env_of_the_shelf_passes(env_id):
    llm_arena.check_env(llm_arena.make(env_id))


@pytest.mark.parametrize("rule", ["forfeit", "random_legal", "penalty"])
@pytest.mark.parametrize("env_id", list(llm_arena.registry))
def test_every_env_passes_under_every_rule(env_id, rule):
    llm_arena.check_env(llm_arena.make(env_id, illegal=rule, retries=1), seed=100)


@pytest.mark.parametrize("what", [ArenaEnv, None, 3])
def test_something_else_than_an_env_is_told(what):
    with pytest.raises(UsageError, match="takes an env or an id"):
        llm_arena.check_env(what)


def test_an_id_is_checked_too():
    llm_arena.check_env("kuhn-poker-v0")


class Cards(ArenaEnv):
    """Two seats hold a card each and say high or low. Faults are planted by subclasses."""

    id = "test-cards-v0"
    roles = {"player": 2}
    zero_sum = True
    hidden = ("cards",)

    def deal(self, rng):
        self.cards = {seat: int(rng.integers(10)) for seat in self.possible_agents}

    def begin(self, rng):
        self.deal(rng)
        for seat in self.possible_agents:
            self.tell(seat, f"Your card is {self.cards[seat]}.")
        return "player_0"

    def legal_actions(self, seat):
        return ["high", "low"]

    def resolve(self, seat, reply):
        read_choice(reply, ["high", "low"])
        if seat == "player_0":
            return Move(next="player_1")
        return self.finish()

    def finish(self):
        return Move(rewards={"player_0": 1, "player_1": -1}, outcome=Outcome(winners=["player_0"], reason="first come"))


def test_the_clean_game_passes():
    llm_arena.check_env(Cards())


class LeakyText(Cards):
    def begin(self, rng):
        first = super().begin(rng)
        self.tell("player_0", f"The other has {self.cards['player_1']}.")
        return first


class LeakyFacts(Cards):
    def facts(self, seat):
        return {"cards": sum(self.cards.values())}


class LeakyActions(Cards):
    def legal_actions(self, seat):
        return ["high", "low"] if self.cards["player_1"] > 4 else ["low", "high"]


class LeakyLater(Cards):
    def resolve(self, seat, reply):
        move = super().resolve(seat, reply)
        self.tell("player_1", "hot" if self.cards["player_0"] > 4 else "cold")
        return move


@pytest.mark.parametrize("leaky", [LeakyText, LeakyFacts, LeakyActions, LeakyLater])
def test_planted_leaks_are_caught(leaky):
    with pytest.raises(EnvContractError, match="learns something"):
        secrets_are_kept(leaky(), 0)


def test_a_hidden_field_that_can_not_be_checked_is_told():
    class KnowsAll(Cards):
        def knows(self, seat):
            return self.cards

    class DealsNothing(Cards):
        deal = ArenaEnv.deal

        def begin(self, rng):
            self.cards = dict.fromkeys(self.possible_agents, 0)
            return "player_0"

    with pytest.raises(EnvContractError, match="no two deals differ"):
        secrets_are_kept(KnowsAll(), 0)
    with pytest.raises(EnvContractError, match="no deal"):
        secrets_are_kept(DealsNothing(), 0)


class Secret(Cards):
    """Only player_0 knows the secret, which is no dict by seat, until the last reply is told."""

    hidden = ("secret",)
    leaks = False

    def deal(self, rng):
        self.secret = int(rng.integers(10))

    def begin(self, rng):
        self.open = self.leaks
        self.deal(rng)
        self.tell("player_0", f"The secret is {self.secret}.")
        return "player_0"

    def knows(self, seat):
        return self.secret if seat == "player_0" else None

    def facts(self, seat):
        return {"secret": self.secret if seat == "player_0" or self.open else None}


class LeakySecret(Secret):
    leaks = True


class RevealedByTheRules(LeakySecret):
    def knows(self, seat):
        return self.secret


def test_a_secret_without_a_seat_is_kept_or_the_leak_is_caught():
    secrets_are_kept(Secret(), 0)
    with pytest.raises(EnvContractError, match="player_1 learns something"):
        secrets_are_kept(LeakySecret(), 0)


def test_what_nobody_can_be_compared_on_is_told():
    with pytest.raises(EnvContractError, match="no two deals differ"):
        secrets_are_kept(RevealedByTheRules(), 0)


class TwoRoles(ArenaEnv):
    """A keeper knows the secret, a seeker does not; the first reply is the seeker's."""

    id = "test-two-roles-v0"
    roles = {"keeper": 1, "seeker": 1}
    hidden = ("secret",)
    insiders = ("keeper",)
    hint = "No."

    def deal(self, rng):
        self.secret = int(rng.integers(10))

    def begin(self, rng):
        self.deal(rng)
        return "seeker_0"

    def knows(self, seat):
        return self.secret if seat == "keeper_0" else None

    def legal_actions(self, seat):
        return ["go"]

    def resolve(self, seat, reply):
        if reply != "go":
            raise IllegalReply(Cause.ILLEGAL, self.hint.format(self.secret))
        return Move(outcome=Outcome(reason="gone"))


class LeakyHint(TwoRoles):
    hint = "No, {}."


class LeakyCause(TwoRoles):
    def resolve(self, seat, reply):
        if reply == "?" and self.secret > 4:
            raise IllegalReply(Cause.UNPARSABLE, "No.")
        return super().resolve(seat, reply)


def test_roles_are_checked_one_by_one_and_hints_too():
    secrets_are_kept(TwoRoles(), 0)
    for leaky in (LeakyHint, LeakyCause):
        with pytest.raises(EnvContractError, match="seeker_0 learns something"):
            secrets_are_kept(leaky(), 0)

    class Forgetful(TwoRoles):
        insiders = ()

    with pytest.raises(EnvContractError, match="for keeper no two deals differ"):
        secrets_are_kept(Forgetful(), 0)


class Independent(Cards):
    """What seats hold is drawn independently from so many values that no other deal gives a seat the same."""

    hidden = ("cards",)

    def deal(self, rng):
        self.cards = {seat: int(rng.integers(10**9)) for seat in self.possible_agents}


class LeakyIndependent(Independent):
    def facts(self, seat):
        return sum(self.cards.values())


def test_independent_secrets_are_compared_too():
    secrets_are_kept(Independent(), 0)
    with pytest.raises(EnvContractError, match="learns something"):
        secrets_are_kept(LeakyIndependent(), 0)


class GlobalRandom(Cards):
    def begin(self, rng):
        self.luck = random.random()
        return super().begin(rng)


class Clock(Cards):
    def begin(self, rng):
        first = super().begin(rng)
        self.tell("player_0", str(time.perf_counter_ns()))
        return first


class HashOrder(Cards):
    def begin(self, rng):
        first = super().begin(rng)
        self.tell("player_0", " ".join({"ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"}))
        return first


class Consuming(Cards):
    def observe(self, agent):
        seen = super().observe(agent)
        self._views[agent].clear()
        return seen


class Aliasing(Cards):
    def observe(self, agent):
        return {"messages": self._views[agent]}


class Unfair(Cards):
    def finish(self):
        return Move(rewards={"player_0": 1}, outcome=Outcome(reason="unfair"))


class Unexplained(Cards):
    def finish(self):
        return Move(outcome=Outcome())


class Lying(Cards):
    def sample_reply(self, seat, rng):
        return "neither"


class PayingForfeit(Cards):
    def forfeit(self, seat, cause):
        return Move(rewards={seat: 1, self.next_seat(seat): -1}, outcome=Outcome(reason="odd"))


class Crashing(Cards):
    def resolve(self, seat, reply):
        int(str(len(reply)) if len(reply) < 1000 else "x")
        return super().resolve(seat, reply)


@pytest.mark.parametrize(
    ("game", "check"),
    [
        (GlobalRandom, checks.global_generators_rest),
        (Clock, checks.seeds_reproduce),
        (HashOrder, checks.other_process_agrees),
        (Consuming, checks.looking_changes_nothing),
        (Aliasing, checks.looking_changes_nothing),
        (Unfair, checks.episodes_end),
        (Unexplained, checks.episodes_end),
        (Lying, checks.legal_actions_are_legal),
        (PayingForfeit, checks.bad_replies_never_pay),
    ],
)
def test_planted_faults_are_caught(game, check):
    with pytest.raises(EnvContractError):
        check(game(), 0)


def test_a_crash_on_odd_text_is_not_hidden():
    with pytest.raises(ValueError, match="invalid literal"):
        checks.nothing_said_raises(Crashing(), 0)


class ForgottenState(Cards):
    def __init__(self, **options):
        super().__init__(**options)
        self.resets = 0

    def begin(self, rng):
        self.resets += 1
        first = super().begin(rng)
        self.tell("player_0", f"game {self.resets}")
        return first


def test_state_outside_the_episode_is_caught():
    env = ForgottenState()
    with pytest.raises(EnvContractError):
        checks.seeds_reproduce(env, 0)
