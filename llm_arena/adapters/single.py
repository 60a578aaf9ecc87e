"""One seat of a game as a `gymnasium.Env`: for single-agent code. The other seats are played by agents.

    env = llm_arena.make("kuhn-poker-v0", role="player", opponents="optimal")
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("bet")

Every id is registered in Gymnasium too: `gymnasium.make("llm_arena/kuhn-poker-v0", opponents="optimal")`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

import gymnasium
import msgspec

from llm_arena.agent import Agent
from llm_arena.env import ArenaEnv, Baseline
from llm_arena.episode import counted_reply, sampling_seed, with_clock
from llm_arena.errors import ContextOverflow, EnvContractError, UnknownName, UsageError, did_you_mean
from llm_arena.recorder import Recorder, step_dead
from llm_arena.registry import make
from llm_arena.roster import BaselineAgent, make_agent, resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Ending, EnvSpec, Reply, SeatInfo, Trace, View
from llm_arena.views import copy_messages

Opponent = str | Agent | Baseline
"""An agent string, an agent object, or a function of (view, rng) that returns a reply."""
Opponents = Opponent | Mapping[str, Opponent]
"""An opponent for all other seats, or one for each role or seat; who is not named plays `random-legal`."""

Stepped = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]
"""(observation, reward, terminated, truncated, info), as Gymnasium has them."""

GYMNASIUM_AGENT = "gymnasium"
"""Who sits in the seat that is stepped from outside, in traces."""

DEFAULT = "random-legal"


class SeatEnv(gymnasium.Env[dict[str, Any], str]):
    """A seat of a game: observations are its view, actions its replies, rewards what it was paid since its last step.

    The seat's own tries after a bad reply, and summaries that it is asked for, are steps of their own. The clock
    `turn_seconds` runs for the others only; for the seat itself, step `Reply("", "timeout")`.

    Args:
        env: the game, which this env plays from now on.
        role: a seat (`player_1`), or a role, of which the first seat is taken; None: the first seat of the game.
        opponents: who plays the other seats.
        runtime: where language models are served; None makes one when it is needed.

    Raises:
        UnknownName: the game has no such seat, role or agent.
        UsageError: an opponent is given for the seat itself, or is none.
    """

    # Gymnasium's own place for it; without `render_fps` it warns, though text has no frames
    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        env: ArenaEnv,
        role: str | None = None,
        opponents: Opponents = DEFAULT,
        *,
        runtime: Runtime | None = None,
    ) -> None:
        self.game = env
        self.seat = _seat(env, role)
        self.render_mode = env.render_mode
        self._runtime = Runtime(max_open_episodes=1) if runtime is None else runtime
        self._own_runtime = runtime is None
        try:
            self._agents = resolve_roster(env, _others(env, self.seat, opponents), runtime=self._runtime)
        except BaseException:
            self.close()
            raise
        scripts = BaselineAgent | type(make_agent(DEFAULT))
        self._instant = {seat for seat, agent in self._agents.items() if isinstance(agent, scripts)}
        if len(self._instant) == len(self._agents):
            self.close()  # a thread for each of many envs would do nothing
        self.observation_space = env.observation_space(self.seat)
        self.action_space = env.action_space(self.seat)
        self._paid = 0.0
        self._recorder: Recorder | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode, and lets the others play until it is this seat's turn.

        Args:
            seed: of the episode and of all that the others sample; None draws one.
            options: tolerated for Gymnasium's sake.

        Returns:
            (observation, info): the seat's view, and its role, attempt and legal actions. If the game was over before
            the seat had a turn, info has the outcome already, and the first step brings the end whatever it says.
        """
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        assert self.game.episode_seed is not None  # it was just reset
        self._paid = 0.0
        seats = {
            seat: SeatInfo(
                role=self.game.role_of(seat),
                agent=self._agents[seat].name if seat != self.seat else GYMNASIUM_AGENT,
                policy=self._agents[seat].policy if seat != self.seat else None,
            )
            for seat in self.game.possible_agents
        }
        self._recorder = Recorder(self._trace_id(), self.game.spec, self.game.episode_seed, seats)
        self._trace: Trace | None = None
        self._left = False
        self._let_others_play()
        self._unasked = self.game.over
        return self._observation(), self._info()

    def step(self, action: str) -> Stepped:
        """Takes the seat's reply, and lets the others play until it is its turn again or the game is over.

        A seat that has left the game is done; the others play on to the end, so that the outcome is known.

        Returns:
            (observation, reward, terminated, truncated, info), as Gymnasium has them; `info["cause"]` is `legal`, or
            what was wrong with the reply.

        Raises:
            UsageError: the action is no text, reset() was not called, or the episode is over.
        """
        if not isinstance(action, str):
            raise UsageError(f"{self.game.id}: an action is text; got {type(action).__name__}")
        return self.act(Action(reply=action if isinstance(action, Reply) else Reply(action)))

    def act(self, action: Action) -> Stepped:
        """Does what `step` does for a reply with the tokens behind it, which the trace then holds."""
        self._check_running()
        if self._unasked:
            self._unasked = False
            return self._stepped()
        self._take(self.view(), action)
        assert self.game.last_step is not None  # it was just stepped
        cause = self.game.last_step.cause
        self._let_others_play()
        observation, reward, terminated, truncated, info = self._stepped()
        return observation, reward, terminated, truncated, info | {"cause": str(cause)}

    def overflow(self) -> Stepped:
        """Ends the episode because the seat's context is full; returns what `step` returns."""
        self._check_running()
        self.game.truncate(Ending.CONTEXT_OVERFLOW, self.seat)
        return self._stepped()

    def view(self) -> View:
        """Returns all that an agent in the seat would be given now."""
        return self._view(self.seat)

    def render(self) -> str | None:
        """Returns (`ansi`) or prints (`human`) the spectator's transcript."""
        return self.game.render()

    def close(self) -> None:
        """Ends the runtime that this env made. Closing twice is fine."""
        if self._own_runtime:
            self._runtime.close()

    @property
    def trace(self) -> Trace:
        """The record of the episode that is over.

        Raises:
            UsageError: it is not over.
        """
        if self._recorder is None or not self.game.over:
            raise UsageError(f"{self.game.id}: the episode is not over, so it has no trace yet")
        if self._trace is None:
            self._trace = self._recorder.finish(self.game)
        return self._trace

    def _check_running(self) -> None:
        if self._recorder is None:
            raise UsageError(f"{self.game.id}: call reset() before step()")
        if self.game.over and not self._unasked:
            raise UsageError(f"{self.game.id}: the episode is over for {self.seat}; call reset()")

    def _stepped(self) -> Stepped:
        total = self.game.returns[self.seat]
        reward, self._paid = total - self._paid, total
        terminated = self._left or self.game.ending is Ending.TERMINATED
        return self._observation(), reward, terminated, self.game.over and not terminated, self._info()

    def _let_others_play(self) -> None:
        while not self.game.over:
            step_dead(self.game)
            self._left = self.seat not in self.game.agents
            seat = self.game.agent_selection
            if seat == self.seat:
                return
            view = self._view(seat)
            try:
                action = self._ask(seat, view)
            except ContextOverflow:
                self.game.truncate(Ending.CONTEXT_OVERFLOW, seat)
                return
            self._take(view, action)

    def _ask(self, seat: str, view: View) -> Action:
        assert self._recorder is not None  # reset() made it
        # what is recorded is not what the agent gets: an agent may well edit its own messages
        view = msgspec.structs.replace(view, messages=copy_messages(view.messages))
        act = self._agents[seat].act(view, tuple(self._recorder.past(seat)))
        # a script never waits for anything, so that it needs no event loop
        return _at_once(act) if seat in self._instant else self._runtime.run(with_clock(act, self.game.turn_seconds))

    def _trace_id(self) -> str:
        """The id that `llm_arena.play` would give, so that others sample as they would there."""
        return f"{self.game.spec.id}:{self.game.episode_seed}"

    def _view(self, seat: str) -> View:
        assert self._recorder is not None and self.game.episode_seed is not None  # reset() made them
        turn = len(self._recorder.past(seat))
        return self.game.view(
            seat, sampling_seed(self.game.episode_seed, self._trace_id(), seat, turn, self.game.attempt(seat))
        )

    def _take(self, view: View, action: Action) -> None:
        assert self._recorder is not None  # reset() made it
        epoch = self.game.view_epoch(view.seat)
        self.game.step(counted_reply(action))
        assert self.game.last_step is not None  # it was just stepped
        self._recorder.add(view, epoch, action, self.game.last_step, 0.0)

    def _observation(self) -> dict[str, Any]:
        return self.game.observe(self.seat)

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"role": self.game.role_of(self.seat), **self.game.infos.get(self.seat, {})}
        if self.game.over:  # who has left has no info any more
            info["outcome"] = msgspec.to_builtins(self.game.outcome)
            info["ending"] = str(self.game.ending)
        return info


def make_seat(
    env_id: str | EnvSpec,
    *,
    role: str | None = None,
    opponents: Opponents = DEFAULT,
    runtime: Runtime | None = None,
    **kwargs: Any,
) -> SeatEnv:
    """Makes one seat of a game; `llm_arena.make` calls this for `role=`, and Gymnasium's `make` always.

    Args:
        env_id: as `make` takes it.
        role: see `SeatEnv`.
        opponents: see `SeatEnv`.
        runtime: see `SeatEnv`.
        kwargs: the game's own arguments.
    """
    return SeatEnv(make(env_id, **kwargs), role, opponents, runtime=runtime)


def _seat(env: ArenaEnv, role: str | None) -> str:
    seats = env.possible_agents
    if role is None:
        return seats[0]
    if role in seats:
        return role
    of_role = [seat for seat in seats if env.role_of(seat) == role]
    if not of_role:
        names = [*env.role_counts, *seats]
        raise UnknownName(
            f"{env.id} has no role or seat {role!r}.{did_you_mean(role, names)} It has: {', '.join(names)}."
        )
    return of_role[0]


def _others(env: ArenaEnv, seat: str, opponents: Opponents) -> dict[str, str | Agent]:
    """Returns a roster for all seats; whoever is put into the outside seat never acts."""
    if not isinstance(opponents, Mapping):
        opponents = dict.fromkeys(env.role_counts, opponents)
    elif seat in opponents:
        raise UsageError(f"{env.id}: opponents names {seat}, which is the seat that you play; leave it out")
    table = {name: _agent(agent) for name, agent in opponents.items()}
    free = [other for other in env.possible_agents if other not in table and env.role_of(other) not in table]
    return {**table, **dict.fromkeys(free, DEFAULT), seat: DEFAULT}


def _agent(opponent: Opponent) -> str | Agent:
    """Returns an agent or its string; a function becomes a scripted player, named after itself."""
    if isinstance(opponent, str | Agent) or not callable(opponent):
        return opponent
    return BaselineAgent(getattr(opponent, "__name__", type(opponent).__name__), opponent)


def _at_once(act: Coroutine[Any, Any, Action]) -> Action:
    try:
        act.send(None)
    except StopIteration as ended:
        action: Action = ended.value
        return action
    raise EnvContractError("a scripted player waited for something; give an agent object with an async act()")
