"""How far a policy is from an equilibrium: exact best responses in two-player zero-sum games that are small.

A game takes part if it says how cards may fall: `deals()` returns each deal's probability and what the attributes in
`hidden` then hold. All chance must be in the deal; nothing is drawn later. The tree is walked with the game itself, so
there are no second rules that could drift from the first, and a place where a seat decides (an information set) is what
the game shows the seat there, word for word.

NashConv is what both players could gain by answering best, sum over i of (best response of i - value of i). In a
zero-sum game the values cancel, so NashConv = BR_0 + BR_1 for a policy that plays both seats; exploitability is half of
it, in units of the game's rewards. An equilibrium has 0. (Lanctot et al., "A Unified Game-Theoretic Approach to
Multiagent Reinforcement Learning", 2017, section 3; a best response by counterfactual values: Johanson et al.,
"Accelerating Best Response Calculation in Large Extensive Games", 2011.)
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any

import msgspec
import numpy as np

from llm_arena.agent import Agent
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.registry import make
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Cause, EnvSpec, Json, PastTurn, Reply, View

Policy = Callable[[View], Mapping[str, float]]
"""What a seat sees -> the probability of each legal action; weights that don't sum to 1 are normalised."""

_MOST_SEEDS = 5_000
"""So many seeds are tried to find one for each deal: the rarest deal of Leduc poker comes once in 30."""
_MOST_DECISIONS = 100_000
"""A larger tree takes minutes to walk, and more than that for a model."""


@dataclass(eq=False)
class Infoset:
    """One place where a seat decides, as far as the seat can tell it from others."""

    index: int
    player: int
    "0 or 1."
    view: View
    before: tuple[Infoset, str] | None
    """The seat's own last decision on the way here, and what it did; None for its first."""
    way: tuple[int, list[str]]
    """An episode seed and the actions that lead here."""
    nodes: list[_Node] = field(default_factory=list)

    @property
    def actions(self) -> list[str]:
        """The legal actions."""
        return self.view.legal_actions or []


@dataclass(eq=False)
class _Node:
    """A position. At the end of a game it has what player 0 wins, else who decides."""

    chance: float
    "Probability of the deal."
    won: float | None = None
    infoset: Infoset | None = None
    children: list[_Node] = field(default_factory=list)


class Tree:
    """All positions of a game, for policies that play both seats.

    Args:
        env: a game of two seats, zero-sum, with `deals`; an id, a spec or an env (which is left alone).

    Raises:
        UsageError: the game is not of this kind, or is too large.
    """

    def __init__(self, env: str | EnvSpec | ArenaEnv) -> None:
        self._env = env = make(env.spec if isinstance(env, ArenaEnv) else env)
        deals = getattr(env, "deals", None)
        if deals is None or len(env.possible_agents) != 2 or not env.zero_sum:
            raise UsageError(
                f"{env.spec.id}: exploitability needs a zero-sum game of two seats with a method deals() that lists how"
                " cards may fall, such as kuhn-poker-v0 or leduc-poker-v0; compare agents in other games by"
                " llm_arena.cross_play"
            )
        self.infosets: list[Infoset] = []
        """In an order in which a seat's earlier decisions come before its later ones."""
        self._known: dict[str, Infoset] = {}
        self._decisions = 0
        self._read: dict[tuple[int, str, str], str | None] = {}
        self._roots = [self._walk(seed, [], chance, {}) for seed, chance in _seeds(env, deals())]
        if not math.isclose(math.fsum(root.chance for root in self._roots), 1.0, abs_tol=1e-9):
            raise UsageError(f"{env.spec.id}: the probabilities of deals() don't sum to 1")

    @property
    def spec(self) -> EnvSpec:
        """The game with its arguments."""
        return self._env.spec

    def chances(self, policy: Policy) -> list[list[float]]:
        """Returns a policy's probabilities of the actions of each information set, in the order of `infosets`.

        Raises:
            UsageError: it returns no table, gives no action a chance, or one that is no number of 0 or more.
        """
        return [self._normalised(infoset, policy(infoset.view)) for infoset in self.infosets]

    def best_response(self, chances: Sequence[Sequence[float]], seat: int) -> float:
        """Returns what the best answer in seat 0 or 1 wins on average against `chances`, exactly (float64)."""
        sign = 1.0 if seat == 0 else -1.0
        reach: dict[int, float] = {}
        best: dict[int, int] = {}

        def spread(node: _Node, chance: float) -> None:
            """Notes with which probability chance and the other player lead to each position."""
            reach[id(node)] = chance
            if node.infoset is not None:
                mine = node.infoset.player == seat
                for place, child in enumerate(node.children):
                    spread(child, chance if mine else chance * chances[node.infoset.index][place])

        def worth(node: _Node) -> float:
            """Returns what the position is worth to the answering player, times `reach`."""
            if node.infoset is None:
                assert node.won is not None  # the game is over there
                return sign * node.won * reach[id(node)]
            if node.infoset.player != seat:
                return math.fsum(map(worth, node.children))
            return worth(node.children[choice(node.infoset)])

        def choice(infoset: Infoset) -> int:
            if infoset.index not in best:
                totals = [
                    math.fsum(worth(node.children[place]) for node in infoset.nodes)
                    for place in range(len(infoset.actions))
                ]
                best[infoset.index] = totals.index(max(totals))
            return best[infoset.index]

        for root in self._roots:
            spread(root, root.chance)
        return math.fsum(map(worth, self._roots))

    def exploitability(self, chances: Sequence[Sequence[float]]) -> float:
        """Returns NashConv / 2 of a policy that is given by its `chances`."""
        return (self.best_response(chances, 0) + self.best_response(chances, 1)) / 2

    def value(self, chances: Sequence[Sequence[float]]) -> float:
        """Returns what player 0 wins on average when both seats play by `chances`."""

        def worth(node: _Node) -> float:
            if node.infoset is None:
                assert node.won is not None  # the game is over there
                return node.won
            return math.fsum(
                chance * worth(child)
                for chance, child in zip(chances[node.infoset.index], node.children, strict=True)
                if chance
            )

        return math.fsum(root.chance * worth(root) for root in self._roots)

    def read(self, infoset: Infoset, reply: Reply) -> str | None:
        """Returns the action that the game reads in a reply at an information set; None if it is not legal."""
        key = (infoset.index, str(reply), reply.finish)
        if key not in self._read:
            seed, line = infoset.way
            self._env.reset(seed=seed)
            for action in [*line, reply]:
                self._env.step(action)
            last = self._env.last_step
            taken = last is not None and last.cause is Cause.LEGAL and last.action in infoset.actions
            self._read[key] = str(last.action) if taken and last is not None else None
        return self._read[key]

    def _walk(self, seed: int, line: list[str], chance: float, own: dict[str, tuple[Infoset, str]]) -> _Node:
        env = self._env
        env.reset(seed=seed)  # and play it anew: cheaper than copies, and a game needs no code for it
        for action in line:
            env.step(action)
        if env.over:
            return _Node(chance, won=float(env.returns[env.possible_agents[0]]))
        self._decisions += 1
        view = env.view(env.agent_selection)
        if view.legal_actions is None or self._decisions > _MOST_DECISIONS:
            why = "lists no legal actions" if view.legal_actions is None else f"has over {_MOST_DECISIONS:,} decisions"
            raise UsageError(
                f"{env.spec.id} {why}, so its tree can't be walked; compare agents by llm_arena.cross_play"
            )
        infoset = self._infoset(view, own.get(view.seat), (seed, line))
        node = _Node(chance, infoset=infoset)
        infoset.nodes.append(node)
        for action in infoset.actions:
            node.children.append(self._walk(seed, [*line, action], chance, {**own, view.seat: (infoset, action)}))
        return node

    def _infoset(self, view: View, before: tuple[Infoset, str] | None, way: tuple[int, list[str]]) -> Infoset:
        key = json.dumps([view.seat, view.messages, view.legal_actions], sort_keys=True)
        found = self._known.get(key)
        if found is None:
            player = self._env.possible_agents.index(view.seat)
            # what a view draws replies from is the game as it stands, which moves on
            still = msgspec.structs.replace(view, sample_reply=partial(_draw, view.legal_actions or []))
            found = self._known[key] = Infoset(len(self.infosets), player, still, before, way)
            self.infosets.append(found)
        if found.before != before:
            raise UsageError(
                f"{self.spec.id}: what {view.seat} sees does not tell what it did before, and a best response is found"
                " for players who remember their own actions"
            )
        return found

    @staticmethod
    def _normalised(infoset: Infoset, given: Mapping[str, float]) -> list[float]:
        try:
            found = [_number(given.get(action, 0.0)) for action in infoset.actions]
            total = math.fsum(found)
        except (AttributeError, TypeError, ValueError, OverflowError):  # no mapping, or not of numbers
            found, total = [], math.nan
        if not (math.isfinite(total) and total > 0 and min(found) >= 0):
            shown = dict(given) if isinstance(given, Mapping) else given
            raise UsageError(
                f"the policy gives {shown!r:.200} where {infoset.view.seat} may {', '.join(infoset.actions)};"
                " expected a probability of 0 or more for each of these, in a dict, not all 0"
            )
        return [chance / total for chance in found]


def exploitability(
    player: Policy | str | Agent,
    env: str | EnvSpec | ArenaEnv,
    *,
    samples: int = 1000,
    seed: int = 0,
    runtime: Runtime | None = None,
    **settings: Any,
) -> float:
    """Returns NashConv / 2 of a player in both seats of a game: 0 for an equilibrium, in units of the game's rewards.

    Of a function that tells probabilities it is exact. An agent's are counted: at every information set it is asked
    `samples` times, through the prompts that the game really sends, and replies that are not legal are left out. What
    is counted is noisy, and a best response takes advantage of noise, so the figure is then somewhat too high, by less
    the more samples there are. `llm_arena.training.action_chances` reads the probabilities of a model in this process,
    with which `Tree.exploitability` is exact.

    Example:
        >>> import llm_arena
        >>> def uniform(view):
        ...     return dict.fromkeys(view.legal_actions, 1.0)
        >>> round(llm_arena.exploitability(uniform, "kuhn-poker-v0"), 6)
        0.458333

    Args:
        player: a function from a view to the probability of each legal action, an agent string, or an agent.
        env: `kuhn-poker-v0`, `leduc-poker-v0`, or another zero-sum game of two seats with a method `deals()`.
        samples: how often an agent is asked at each information set.
        seed: of the agent's sampling.
        runtime: where a model is served; None makes one.
        settings: of the agent, e.g. `max_new_tokens=4`.

    Raises:
        UsageError: the game can't be solved, the probabilities are none, an agent never gives a legal reply, or
            `samples` or `seed` can't be.
        UnknownName: no such agent.
    """
    tree = Tree(env)
    if not isinstance(player, str | Agent):
        if settings:
            raise UsageError(f"the settings {', '.join(settings)} are an agent's, and a function was given")
        return tree.exploitability(tree.chances(player))
    if runtime is None:
        with Runtime() as own:
            return exploitability(player, tree.spec, samples=samples, seed=seed, runtime=own, **settings)
    agent = make_agent(player, env_id=tree.spec.id, runtime=runtime, **settings)
    return tree.exploitability(runtime.run(sampled(agent, tree, runtime, samples=samples, seed=seed)))


async def sampled(agent: Agent, tree: Tree, runtime: Runtime, *, samples: int, seed: int = 0) -> list[list[float]]:
    """Returns how often an agent gives each action at each information set; to be run on the runtime's loop.

    Where a seat has acted before, the agent has a past in which it said so, in its own words and tokens if it ever did.

    Raises:
        UsageError: none of its replies at an information set was a legal action, or `samples` or `seed` can't be.
    """
    limits: list[tuple[str, Any, int]] = [("samples", samples, 1), ("seed", seed, 0)]
    for name, number, least in limits:
        if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
            raise UsageError(f"{name} must be a whole number of at least {least}, got {number!r}")
    prepare = getattr(agent, "prepare", None)
    if prepare is not None:
        await prepare()

    async def ask(view: View, past: Sequence[PastTurn]) -> Action:
        async with runtime.slot():
            return await agent.act(view, past)

    heard: dict[tuple[int, str], Action] = {}
    found: list[list[float]] = []
    for infoset in tree.infosets:
        past = past_of(infoset, heard)
        seeds = np.random.SeedSequence([seed, infoset.index]).generate_state(samples, np.uint64).tolist()
        replies = await asyncio.gather(
            *(ask(msgspec.structs.replace(infoset.view, seed=number), past) for number in seeds)
        )
        counts = dict.fromkeys(infoset.actions, 0)
        for reply in replies:
            action = tree.read(infoset, reply.reply)
            if action is not None:
                counts[action] += 1
                heard.setdefault((infoset.index, action), reply)
        if not any(counts.values()):
            raise UsageError(
                f"{agent.name}: none of {samples} replies was legal where {infoset.view.seat} may"
                f" {', '.join(infoset.actions)}; e.g. {str(replies[0].reply)!r:.60}. Raise samples or max_new_tokens"
            )
        found.append([count / sum(counts.values()) for count in counts.values()])
    return found


def past_of(infoset: Infoset, heard: Mapping[tuple[int, str], Action]) -> list[PastTurn]:
    """Returns the seat's earlier turns on the way to an information set, oldest first.

    Args:
        infoset: where the seat is to act.
        heard: what it said, by the index of the information set and its action; what is missing was the bare action.
    """
    turns: list[PastTurn] = []
    before = infoset.before
    while before is not None:
        earlier, action = before
        said = heard.get((earlier.index, action), Action(reply=Reply(action)))
        turns.append(
            PastTurn(
                index=0,
                num_messages=len(earlier.view.messages),
                view_epoch=earlier.view.view_epoch,
                # The game may keep more of a reply than its action: the later view has the bare one.
                reply=Reply(action, said.reply.finish),
                prompt_ids=said.prompt_ids,
                completion=said.completion,
            )
        )
        before = earlier.before
    turns.reverse()
    return [msgspec.structs.replace(turn, index=place) for place, turn in enumerate(turns)]


def _number(given: Any) -> float:
    """Returns a number as a float; text is none, whatever it says."""
    if isinstance(given, str | bytes):
        raise TypeError
    return float(given)


def _draw(actions: Sequence[str], rng: np.random.Generator) -> str:
    return actions[int(rng.integers(len(actions)))]


def _seeds(env: ArenaEnv, deals: Sequence[tuple[float, Mapping[str, Json]]]) -> list[tuple[int, float]]:
    """Returns an episode seed for each deal, with the deal's probability."""
    wanted = {_cards(held): chance for chance, held in deals}
    if len(wanted) != len(deals):
        raise UsageError(f"{env.spec.id}: deals() lists a deal twice")
    found: dict[str, int] = {}
    for seed in range(_MOST_SEEDS):
        env.reset(seed=seed)
        cards = _cards({name: getattr(env, name) for name in env.hidden})
        if cards not in wanted:
            raise UsageError(f"{env.spec.id}: seed {seed} deals {cards}, which deals() does not list")
        found.setdefault(cards, seed)
        if len(found) == len(wanted):
            return [(found[cards], chance) for cards, chance in wanted.items()]
    missing = next(cards for cards in wanted if cards not in found)
    raise UsageError(f"{env.spec.id}: deals() lists {missing}, which none of {_MOST_SEEDS:,} seeds deals")


def _cards(held: Mapping[str, Json]) -> str:
    return json.dumps(held, sort_keys=True)


__all__ = ["Infoset", "Policy", "Tree", "exploitability", "past_of", "sampled"]
