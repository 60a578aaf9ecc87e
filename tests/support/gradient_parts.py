"""Traces that a small model really played, with each of its calls noted as it was made; and a naive loop over calls."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import llm_arena
from llm_arena.bookkeeping import StepRecord
from llm_arena.harness import HarnessPlan, harness_agents, load_harness
from llm_arena.recorder import Recorder
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.training.batch import TrainSequence
from llm_arena.training.credit import Credit
from llm_arena.types import (
    Action,
    Cause,
    Completion,
    Ending,
    EnvSpec,
    Outcome,
    PastTurn,
    Reply,
    SeatInfo,
    Trace,
    View,
)


@dataclass(frozen=True)
class MadeCall:
    """One call of a model: what was sent and what came back."""

    trace: str
    seat: str
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    behaviour: tuple[float, ...]


@dataclass
class Noted:
    """An agent that notes its calls."""

    agent: Any
    policy: str | None
    trace: str
    notes: list[MadeCall]
    name: str = "noted"

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        action: Action = await self.agent.act(view, past)
        if action.completion is not None:
            assert action.prompt_ids is not None
            self.notes.append(
                MadeCall(
                    self.trace,
                    view.seat,
                    tuple(action.prompt_ids),
                    tuple(action.completion.token_ids),
                    tuple(action.completion.logprobs),
                )
            )
        return action


def play_noted(
    game: str,
    folder: Path,
    *,
    episodes: int = 2,
    frozen: Sequence[str] = (),
    max_new_tokens: int = 6,
    temperature: float = 1.0,
    same_start: bool = True,
    **arguments: Any,
) -> tuple[list[Trace], list[MadeCall]]:
    """Plays a game with a model in all seats; those in `frozen` are recorded as another policy's."""
    env = llm_arena.make(game, **arguments)
    notes: list[MadeCall] = []
    plans = []
    with Runtime() as runtime:
        settings = {"max_new_tokens": max_new_tokens, "temperature": temperature}
        agents = resolve_roster(env, dict.fromkeys(env.possible_agents, f"llm:{folder}"), runtime=runtime, **settings)
        for number in range(episodes):
            noted = {
                seat: Noted(agent, "frozen" if seat in frozen else "learner", f"t{number}", notes)
                for seat, agent in agents.items()
            }
            seed = 11 if same_start else 11 + number
            plans.append(EpisodePlan(id=f"t{number}", spec=env.spec, seed=seed, agents=noted, group="g"))
        traces = runtime.run(play_many(plans, runtime), timeout=120)
    for trace in traces:
        assert not trace.void, trace.failure
    return traces, notes


async def pipeline(ctx: Any, sample: dict[str, Any]) -> dict[str, float]:
    """A harness as a user might write it: several tries at once, two that go on from one of them, and a choice."""
    question = [{"role": "user", "content": sample["prompt"]}]
    tries = await asyncio.gather(*(ctx.call("solver", question) for _ in range(3)))
    begun = [*question, {"role": "assistant", "content": str(tries[0])}]
    more = await asyncio.gather(
        *(ctx.call("solver", [*begun, {"role": "user", "content": f"{what} again"}]) for what in ("first", "second"))
    )
    chosen = await ctx.call("selector", " / ".join(map(str, [*tries, *more])))
    return {"solver": float(len(more[0])), "selector": float(len(chosen))}


def run_noted(folder: Path, *, episodes: int = 2, max_new_tokens: int = 5) -> tuple[list[Trace], list[MadeCall]]:
    """Runs `pipeline` with a model in all roles."""
    notes: list[MadeCall] = []
    with Runtime() as runtime:
        harness = load_harness(pipeline)
        settings = {"max_new_tokens": max_new_tokens}
        [agent] = harness_agents(f"llm:{folder}", runtime=runtime, settings=settings).values()
        spec = harness.spec({"prompt": "name the coffee shop"})
        plans = [
            HarnessPlan(
                id=f"t{number}",
                spec=spec,
                seed=5,
                agents={"*": Noted(agent, "learner", f"t{number}", notes)},
                group="g",
                harness=harness,
            )
            for number in range(episodes)
        ]
        traces = runtime.run(play_many(plans, runtime), timeout=60)
    for trace in traces:
        assert not trace.void, trace.failure
    return traces, notes


def float64(folder: Path, seed: int = 0) -> Any:
    """The model of a folder in float64 throughout, with larger random weights so that what it reads matters."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return in_float64(model, seed)


def in_float64(model: Any, seed: int = 0) -> Any:
    size = model.config.hidden_size
    generator = torch.Generator().manual_seed(seed)
    for module in list(model.modules()):
        for child, norm in list(module.named_children()):
            if type(norm).__name__ == "LlamaRMSNorm":  # transformers' own computes in float32
                setattr(module, child, torch.nn.RMSNorm(size, eps=1e-6, dtype=torch.float64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    return model


def random_credit(traces: Sequence[Trace], policy: str = "learner", seed: int = 0) -> Credit:
    """Some advantage for each seat that a policy holds."""
    rng = np.random.default_rng([seed, 3])
    return Credit(
        advantages={
            (trace.id, seat): float(rng.normal())
            for trace in traces
            for seat, info in trace.seats.items()
            if info.policy == policy
        }
    )


def spoken(model: Any, call: MadeCall, temperature: float = 1.0) -> Tensor:
    """Full log-probabilities [T, V] at the sampled ids of one call: one forward pass over the ids that were sent."""
    ids = torch.tensor([[*call.prompt, *call.completion]])
    logits = model(input_ids=ids, use_cache=False).logits[0]
    begin = len(call.prompt) - 1
    return torch.log_softmax(logits[begin : begin + len(call.completion)] / temperature, -1)


def chosen(rows: Tensor, call: MadeCall) -> Tensor:
    return torch.stack([rows[at, token] for at, token in enumerate(call.completion)])


def gradient_of(model: Any, loss: Tensor) -> Tensor:
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, own, allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(own, found, strict=True)])


def accumulated(model: Any) -> Tensor:
    """What `.grad` holds."""
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in own])


def naive_reinforce(
    model: Any, calls: Sequence[MadeCall], gained: Credit, divisor: float, temperature: float = 1.0
) -> Tensor:
    """The gradient of -sum A log p / divisor, call by call, token by token."""
    total = torch.zeros((), dtype=torch.float64)
    for call in calls:
        weight = gained.advantages.get((call.trace, call.seat))
        if weight is None or not call.completion:
            continue
        for logprob in chosen(spoken(model, call, temperature), call):
            total = total - weight * logprob
    return gradient_of(model, total / divisor)


def synthetic(seed: int, vocabulary: int, *, turns: int = 14, name: str = "s") -> tuple[Trace, list[MadeCall]]:
    """A trace as no game would make it: seats whose prompts extend any earlier turn of theirs, or part of one, or none.

    Some replies are empty, some turns are guided (and then not trained), and some prompts come twice.
    """
    rng = np.random.default_rng([seed, 17])
    seats = {
        f"player_{k}": SeatInfo(role="player", agent="x", policy="learner" if k < 2 else "frozen") for k in (0, 1, 2)
    }
    recorder = Recorder(name, EnvSpec(id="synthetic-v0"), seed, seats, group="g")
    known: dict[str, list[tuple[int, ...]]] = {seat: [] for seat in seats}
    calls = []
    for _ in range(turns):
        seat = str(rng.choice(list(seats)))
        prompt: tuple[int, ...] = tuple(rng.integers(0, vocabulary, rng.integers(1, 4)).tolist())
        if known[seat] and rng.random() < 0.85:
            base = known[seat][rng.integers(len(known[seat]))]
            if rng.random() < 0.3:
                base = base[: rng.integers(1, len(base) + 1)]
            prompt = base + tuple(rng.integers(0, vocabulary, rng.integers(0, 3)).tolist())
        said = rng.integers(0, vocabulary, rng.integers(0, 5)).tolist()
        behaviour = (-3 * rng.random(len(said))).tolist()
        guided = bool(rng.random() < 0.1)
        completion = Completion(token_ids=said, logprobs=behaviour, finish="stop", guided=guided)
        view = View(
            seat=seat,
            role="player",
            messages=[],
            legal_actions=None,
            grammar=None,
            facts=None,
            attempt=0,
            seed=0,
            sample_reply=lambda rng: "",
        )
        step = StepRecord(seat=seat, reply=Reply(""), cause=Cause.LEGAL, attempt=0, action=None, rewards={})
        recorder.add(view, 0, Action(reply=Reply(""), prompt_ids=list(prompt), completion=completion), step, 0.0)
        known[seat].append(prompt + tuple(said))
        if not guided:
            calls.append(MadeCall(name, seat, prompt, tuple(said), tuple(behaviour)))
    env: Any = SimpleNamespace(
        ending=Ending.TERMINATED, outcome=Outcome(), returns=dict.fromkeys(seats, 0.0), overflow_seat=None, stats={}
    )
    return recorder.finish(env), calls


def in_two(one: TrainSequence, at: int) -> list[TrainSequence]:
    """One stored sequence as two: the first stops after `at` ids, the second trains only what comes later."""
    place = np.arange(len(one.token_ids))
    cut = {name: getattr(one, name)[:at] for name in ("token_ids", "trained", "advantage", "behaviour", "unit")}
    return [dataclasses.replace(one, **cut), dataclasses.replace(one, trained=one.trained & (place >= at))]


def between_turns(one: TrainSequence, rng: np.random.Generator) -> int:
    """A place where no turn is cut: an untrained id, or the start of a turn, or the end."""
    assert one.unit is not None
    places = [at for at in range(1, len(one.unit)) if one.unit[at] != one.unit[at - 1]]
    return int(rng.choice([*places, len(one.unit)]))


def anywhere(one: TrainSequence, rng: np.random.Generator) -> int:
    """Any place, in the midst of a turn as well."""
    return int(rng.integers(1, len(one.token_ids) + 1))
