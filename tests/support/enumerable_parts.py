"""Games small enough to list every episode, played through the real env and recorder, and their exact gradients.

The vocabulary has three ids. A reply is sampled until the id 0 or until it is `longest` ids long, so a turn of two ids
has seven replies, and a game of three turns 147 episodes. Each of them is played once; a set of weights then gives
every episode its probability, and the gradient of what a seat expects to be paid is a sum over all of them, written out
below without any of the library's training code.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import llm_arena
from llm_arena.env import ArenaEnv
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Completion, Move, Outcome, PastTurn, Reply, Trace, View

STOP, VOCABULARY = 0, 3
FILLER = "a long tale of nothing at all, told again and again, " * 8
BUDGET = 300


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One game: who speaks in which order, how long at most, and what else is special."""

    seats: Mapping[str, int]
    "Seats per role."
    turns: Sequence[tuple[str, int]]
    zero_sum: bool = False
    compacts: bool = False
    "What is told is so long that the first seat is asked for a summary before its second turn."
    fresh: bool = False
    "The helper's view is replaced before its second turn: another sub-agent in the same seat."
    strips: bool = False
    "The chat format drops the first id of earlier replies that are longer than one, as templates drop thinking."


SHAPES = {
    "duel": Shape(seats={"player": 2}, turns=[("player_0", 2), ("player_1", 2), ("player_0", 1)]),
    "zero": Shape(seats={"player": 2}, turns=[("player_0", 2), ("player_1", 2), ("player_0", 1)], zero_sum=True),
    "short": Shape(seats={"player": 2}, turns=[("player_0", 1), ("player_1", 1), ("player_0", 1)]),
    "brief": Shape(seats={"boss": 1, "helper": 1}, turns=[("boss_0", 1), ("helper_0", 1), ("boss_0", 1)]),
    "roles": Shape(seats={"boss": 1, "helper": 1}, turns=[("boss_0", 1), ("helper_0", 2), ("boss_0", 2)]),
    "compact": Shape(
        seats={"player": 2},
        turns=[("player_0", 1), ("player_1", 1), ("player_0", 2), ("player_0", 1)],
        compacts=True,
    ),
    "errand": Shape(
        seats={"boss": 1, "helper": 1},
        turns=[("boss_0", 1), ("helper_0", 2), ("boss_0", 1), ("helper_0", 1)],
        fresh=True,
    ),
    "trio": Shape(seats={"player": 3}, turns=[("player_0", 2), ("player_1", 1), ("player_2", 1)]),
    "stripped": Shape(seats={"player": 2}, turns=[("player_0", 2), ("player_1", 1), ("player_0", 2)], strips=True),
}


def payoff(shape: Shape, said: Sequence[Sequence[int]]) -> dict[str, float]:
    """What each seat is paid: an arbitrary number for each seat and each way to play, the same at every call."""
    seats = list(dict.fromkeys(seat for seat, _ in shape.turns))
    key = [7, *(token + 1 for reply in said for token in (*reply, VOCABULARY))]
    drawn = np.random.default_rng(key).normal(size=len(seats)) + 0.5
    if shape.zero_sum:
        drawn[1] = -drawn[0]
    return {seat: float(paid) for seat, paid in zip(seats, drawn, strict=True)}


class Enumerable(ArenaEnv):
    """Seats speak in a fixed order; all hear all; at the end everybody is paid by what was said."""

    id = "enumerable-v0"
    roles = {"player": (0, 3), "boss": (0, 1), "helper": (0, 1)}

    def __init__(self, *, shape: str = "duel", **options: Any) -> None:
        self.shape = shape
        super().__init__(counts=SHAPES[shape].seats, **options)
        self.zero_sum = SHAPES[shape].zero_sum

    def begin(self, rng: np.random.Generator) -> str:
        self.said: list[list[int]] = []
        for number, seat in enumerate(self.possible_agents):
            self.tell(seat, f"2 {number}")
        return SHAPES[self.shape].turns[0][0]

    def resolve(self, seat: str, reply: Reply) -> Move:
        shape = SHAPES[self.shape]
        self.said.append(digits(str(reply)))
        turns = [turn for number, turn in enumerate(shape.turns) if not (shape.compacts and number == 2)]
        if len(self.said) == len(turns):
            whole = [*self.said[:2], self.summary_said, self.said[2]] if shape.compacts else self.said
            return Move(rewards=payoff(shape, whole), outcome=Outcome(reason="all has been said"))
        following = turns[len(self.said)][0]
        if shape.fresh and following == "helper_0" and len(self.said) > 1:
            self.replace_view(following, [{"role": "user", "content": f"2 2 {' '.join(map(str, self.said[-1]))}"}])
        else:
            filler = FILLER if shape.compacts else ""
            self.tell([other for other in self.possible_agents if other != seat], filler + str(reply))
        return Move(next=following)

    @property
    def summary_said(self) -> list[int]:
        """The summary, from the view that it is all there is left of: after the opening."""
        return digits(self.observe("player_0")["messages"][1]["content"])


def digits(text: str) -> list[int]:
    return [int(token) for token in re.findall(r"\d", text)]


@dataclass(frozen=True)
class Call:
    """One call of a model, as it was made."""

    seat: str
    prompt: tuple[int, ...]
    completion: tuple[int, ...]


@dataclass
class Speaker:
    """Says what it is told to, and notes each call. The chat format is the ids in the text, a 1 before each message."""

    policy: str
    seat: str
    words: list[list[int]]
    calls: list[Call]
    strips: bool
    name: str = "speaker"

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        prompt: list[int] = []
        for message in view.messages:
            assert isinstance(message["content"], str)
            ids = digits(message["content"])
            if message["role"] == "assistant":
                prompt += ids[1:] if self.strips and len(ids) > 1 else ids
            else:
                prompt += [1, *ids]
        said = self.words.pop(0)
        self.calls.append(Call(self.seat, tuple(prompt), tuple(said)))
        finish = "stop" if said[-1] == STOP else "length"
        completion = Completion(token_ids=said, logprobs=[0.0] * len(said), finish=finish)  # type: ignore[arg-type]
        return Action(reply=Reply(" ".join(map(str, said))), prompt_ids=prompt, completion=completion)


@dataclass(frozen=True)
class Episode:
    calls: tuple[Call, ...]
    returns: Mapping[str, float]
    trace: Trace
    "As the recorder left it, with log-probabilities of 0."


@dataclass(repr=False)
class World:
    """All episodes of one game with a policy in each seat."""

    name: str
    policies: Mapping[str, str]
    episodes: list[Episode]
    distinct: list[tuple[str, Call]] = field(default_factory=list)
    "Each (policy, call) that occurs, once."
    places: list[list[int]] = field(default_factory=list)
    "By episode: its calls' places in `distinct`."

    def __post_init__(self) -> None:
        found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
        for episode in self.episodes:
            own = []
            for call in episode.calls:
                policy = self.policies[call.seat]
                key = policy, call.prompt, call.completion
                if key not in found:
                    found[key] = len(self.distinct)
                    self.distinct.append((policy, call))
                own.append(found[key])
            self.places.append(own)


def replies(longest: int) -> list[list[int]]:
    """Every reply of at most `longest` ids: up to the first stop id."""
    found: list[list[int]] = []
    for length in range(1, longest + 1):
        for ids in itertools.product(range(VOCABULARY), repeat=length):
            if STOP not in ids[:-1] and (ids[-1] == STOP or length == longest):
                found.append(list(ids))
    return found


def play_all_ways(name: str, policies: Mapping[str, str]) -> World:
    """Plays every episode of a game once, through the env, the rollout and the recorder."""
    shape = SHAPES[name]
    if Enumerable.id not in llm_arena.registry.entries:
        llm_arena.register(Enumerable.id, Enumerable)
    spec = llm_arena.make(Enumerable.id, shape=name, budget=BUDGET if shape.compacts else None).spec
    ways = list(itertools.product(*(replies(longest) for _, longest in shape.turns)))
    plans, logs = [], []
    for number, words in enumerate(ways):
        queue, calls = [list(said) for said in words], []  # type: ignore[var-annotated]
        logs.append(calls)
        agents = {
            seat: Speaker(policies[seat], seat, queue, calls, shape.strips)
            for seat in dict.fromkeys(seat for seat, _ in shape.turns)
        }
        plans.append(EpisodePlan(id=f"way-{number}", spec=spec, seed=0, agents=agents, group="all"))
    with Runtime() as runtime:
        traces = runtime.run(play_many(plans, runtime), timeout=120)
    episodes = []
    for words, calls, trace in zip(ways, logs, traces, strict=True):
        assert not trace.void, trace.failure
        assert [call.seat for call in calls] == [seat for seat, _ in shape.turns] == [turn.seat for turn in trace.turns]
        assert trace.returns == payoff(shape, words)
        episodes.append(Episode(tuple(calls), payoff(shape, words), trace))
    return World(name, policies, episodes)


def tiny_llama(seed: int, vocabulary: int = VOCABULARY, hidden: int = 8, layers: int = 1, **changes: Any) -> Any:
    """A random Llama in float64 throughout: transformers' own norm computes in float32, which hides small mistakes."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.7,
        **changes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config).to(torch.float64)  # type: ignore[arg-type,no-untyped-call]
    for module in list(model.modules()):
        for child, norm in list(module.named_children()):
            if type(norm).__name__ == "LlamaRMSNorm":
                setattr(module, child, torch.nn.RMSNorm(hidden, eps=1e-6, dtype=torch.float64))
    return model


def token_logprobs(model: Any, calls: Sequence[Call], temperature: float = 1.0) -> Tensor:
    """Log-probabilities [C, T] of what was said in each call: one plain causal pass, zeros after the end."""
    rows = [[*call.prompt, *call.completion] for call in calls]
    longest, most = max(map(len, rows)), max(len(call.completion) for call in calls)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    full = torch.log_softmax(model(input_ids=ids, use_cache=False).logits / temperature, -1)
    out = []
    for number, call in enumerate(calls):
        begin = len(call.prompt)
        own = [full[number, begin + k - 1, token] for k, token in enumerate(call.completion)]
        out.append(torch.stack([*own, *[torch.zeros((), dtype=full.dtype)] * (most - len(own))]))
    return torch.stack(out)


@dataclass
class Odds:
    """What the weights make of a world."""

    tokens: Tensor
    "[C, T] of each distinct call, with gradient."
    chance: np.ndarray[Any, Any]
    "Probability of each episode."
    traces: list[Trace]
    "With the log-probabilities filled in, as an engine would have reported them."


def odds(world: World, models: Mapping[str, Any], temperature: float = 1.0) -> Odds:
    tokens = torch.zeros(
        len(world.distinct), max(len(call.completion) for _, call in world.distinct), dtype=torch.float64
    )
    for policy, model in models.items():
        own = [place for place, (who, _) in enumerate(world.distinct) if who == policy]
        if own:
            values = token_logprobs(model, [world.distinct[place][1] for place in own], temperature)
            tokens = tokens.index_put((torch.tensor(own)[:, None], torch.arange(values.shape[1])), values)
    plain = tokens.detach().numpy()
    log_chance = np.array([plain[places].sum() for places in world.places])
    chance = np.exp(log_chance)
    assert abs(chance.sum() - 1) < 1e-9
    traces = []
    for episode, places in zip(world.episodes, world.places, strict=True):
        turns = [
            msgspec.structs.replace(turn, logprobs=plain[place, : len(turn.completion_ids)].tolist())
            for turn, place in zip(episode.trace.turns, places, strict=True)
        ]
        traces.append(msgspec.structs.replace(episode.trace, turns=turns))
    return Odds(tokens, chance / chance.sum(), traces)


def parameters(model: Any) -> list[Any]:
    return list(model.parameters())


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def exact_gradient(
    world: World,
    models: Mapping[str, Any],
    policy: str,
    *,
    temperature: float = 1.0,
    by_trace: bool = False,
    paid: Callable[[Episode, str], float] = lambda episode, seat: episode.returns[seat],
) -> Tensor:
    """The sum over the seats of `policy` of the gradient of the seat's own expected return by the seat's own tokens.

    For each seat, the probability of an episode depends on the weights through that seat's calls alone; those of all
    others, even where they share its weights, are constants. With `by_trace` each seat's return is the sum of all.
    """
    now = odds(world, models, temperature)
    per_call = now.tokens.sum(-1)
    total = torch.zeros((), dtype=torch.float64)
    for seat in [seat for seat, who in world.policies.items() if who == policy]:
        for episode, places in zip(world.episodes, world.places, strict=True):
            log_chance = torch.zeros((), dtype=torch.float64)
            for call, place in zip(episode.calls, places, strict=True):
                log_chance = log_chance + (per_call[place] if call.seat == seat else per_call[place].detach())
            worth = sum(paid(episode, other) for other in episode.returns) if by_trace else paid(episode, seat)
            total = total + log_chance.exp() * worth
    return flat(torch.autograd.grad(total, parameters(models[policy])))
