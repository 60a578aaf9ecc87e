"""Playing a board: what is missing is played, kept match by match, and tabulated."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llm_arena.agent import Agent
from llm_arena.boards.board import Board, BoardError, Entrant, Game, entrant_table
from llm_arena.boards.leaderboard import CSV, MARKDOWN, RATINGS, Leaderboard, tabulate
from llm_arena.boards.manifest import MANIFEST, Manifest, changes, load_manifest, session, weights_of
from llm_arena.boards.match_file import MATCHES, TRACES, MatchFile
from llm_arena.boards.progress import progress
from llm_arena.errors import EngineError, UnknownName, UsageError
from llm_arena.matchmaking import Match, play_matches, row_of
from llm_arena.models import resolve_model
from llm_arena.rating import MatchRow
from llm_arena.rating.bradley_terry import PriorSd
from llm_arena.registry import env_class, registry
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.trace_file import TraceWriter
from llm_arena.types import EnvSpec, Failure, Json, Trace

_T = TypeVar("_T")
_DEAD = 3
"""So many matches in a row that the engine of one model voids mean that it is gone."""


@dataclass(frozen=True)
class _Players:
    """The agents of one pool: a bare word such as `optimal` is its game's own player."""

    entrants: dict[str, Agent]
    officials: dict[str, Agent]
    """By what the board says of them: agent and settings."""


def evaluate(
    entrants: Sequence[str] | Mapping[str, str | Agent | Mapping[str, Any]],
    envs: str | EnvSpec | Game | Sequence[str | EnvSpec | Game],
    *,
    matches: int = 100,
    seed: int = 0,
    anchor: str | None = None,
    prior_sd: PriorSd = "fitted",
    folder: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    runtime: Runtime | None = None,
    show_progress: bool = False,
) -> Leaderboard:
    """Lets entrants meet in games and returns the leaderboard. Works in notebooks too.

    In a cooperative game, such as `thinker-verifier-v0`, entrants don't meet: each holds all seats, and is ordered by
    its mean reward instead of a rating.

    Example:
        >>> import llm_arena
        >>> board = llm_arena.evaluate(["optimal", "random-legal"], "kuhn-poker-v0", matches=20)
        >>> board.rows[0].wins + board.rows[0].losses
        20

    Args:
        entrants: agent strings, or names with an agent string, an agent object, or a table such as
            `{"agent": "smollm2-135m", "max_new_tokens": 24}`.
        envs: one or several games: an id, a spec, or a `Game`. Each is a pool of its own.
        matches: for each set of entrants that meets (each pair, with two seats); rounded up to whole blocks.
        seed: decides all starts and all sampling.
        anchor: the entrant with 1000 points; None: the mean has them.
        prior_sd: spread of strengths before any match, in nats; "fitted": chosen by the matches, from 1.5.
        folder: where to keep matches, traces and tables. The same call goes on where it was stopped; more matches,
            entrants and games may be asked for. None: nothing is kept.
        fresh: delete what the folder has of an earlier board.
        runtime: where to play; None makes one.
        show_progress: on standard error.

    Raises:
        UnknownName, UsageError: an entrant, a game or a setting is wrong.
        BoardError: the folder holds matches that these settings would not play.
        EngineError: the engine died, or no match could be played; what was finished is kept.
    """
    if isinstance(entrants, str):
        raise UsageError(f'entrants is "{entrants}"; give a list such as ["{entrants}", "random-legal"], or a mapping')
    if not isinstance(matches, int):
        raise UsageError(f"matches is {matches!r}; give a whole number")
    games = [envs] if isinstance(envs, str | EnvSpec | Game) else list(envs)
    if not isinstance(entrants, Mapping):
        entrants = {name: name for name in _once(entrants)}
    path = None if folder is None else Path(folder)
    board = Board(
        name=path.name if path is not None else "evaluation",
        entrants=[_entrant(name, given) for name, given in entrants.items()],
        games=_games(games),
        matches=matches,
        seed=seed,
        anchor=anchor,
        prior_sd=prior_sd,
    )
    objects = {name: given for name, given in entrants.items() if not isinstance(given, str | Mapping)}
    return play_board(board, folder=path, objects=objects, fresh=fresh, runtime=runtime, show_progress=show_progress)


def play_board(
    board: Board,
    *,
    folder: Path | None = None,
    objects: Mapping[str, Agent] | None = None,
    fresh: bool = False,
    runtime: Runtime | None = None,
    show_progress: bool = False,
) -> Leaderboard:
    """Plays what a board's folder lacks, and returns the leaderboard; see `evaluate`.

    Args:
        board: who plays what.
        folder: where matches, traces and tables are kept; None: nowhere.
        objects: agents of entrants that are no agent strings, by name.
        fresh: delete what the folder has of an earlier board.
        runtime: where to play; None makes one with the board's engine.
        show_progress: on standard error.

    Raises:
        As `evaluate`.
    """
    schedule = board.schedule()

    def finish(rows: Iterable[MatchRow]) -> Leaderboard:
        found = tabulate(board, schedule, rows, folder)
        if folder is not None:
            found.save(folder)
        return found

    return play_schedule(
        board,
        schedule,
        finish,
        folder=folder,
        objects=objects or {},
        fresh=fresh,
        runtime=runtime,
        show_progress=show_progress,
    )


def play_schedule(
    board: Board,
    schedule: Mapping[str, list[Match]],
    finish: Callable[[Iterable[MatchRow]], _T],
    *,
    folder: Path | None,
    objects: Mapping[str, Agent],
    fresh: bool,
    runtime: Runtime | None,
    show_progress: bool,
) -> _T:
    """Plays what a folder lacks of the matches of each pool, and returns what `finish` makes of all rows.

    Args:
        board: who plays what; its own schedule plays no part.
        schedule: the matches of each of its games.
        finish: called with the rows while the folder is held.
        folder: where matches and traces are kept; None: nowhere.
        objects: agents of entrants that are no agent strings, by name.
        fresh: delete what the folder has of an earlier board.
        runtime: where to play; None makes one with the board's engine.
        show_progress: on standard error.

    Raises:
        As `evaluate`.
    """
    with contextlib.ExitStack() as stack:
        if runtime is None:
            runtime = stack.enter_context(Runtime(engine=board.engine))
        players = _players(board, objects, runtime)
        if folder is None:
            rows: dict[str, MatchRow] = {}
            _play(schedule, players, runtime, rows, _remember(schedule, rows), show_progress)
            return finish(rows.values())
        weights = _weights(
            {name: agent for name, agent in players[board.games[0].pool].entrants.items() if name not in objects}
        )
        manifest = Manifest.of(board, weights, {pool: _weights(found.officials) for pool, found in players.items()})
        with _open(folder, manifest, schedule, fresh=fresh) as file:
            manifest.save(folder)
            if any(_missing(matches, file.rows) for matches in schedule.values()):
                manifest.sessions.append(session())
                manifest.save(folder)
                try:
                    _play(schedule, players, runtime, file.rows, file.add, show_progress)
                except BaseException:
                    with contextlib.suppress(BoardError):  # a disk that is full has been told of already
                        _save_engines(manifest, folder, runtime, players)
                    raise
                _save_engines(manifest, folder, runtime, players)
            return finish(file.rows.values())


@contextlib.contextmanager
def _open(folder: Path, manifest: Manifest, schedule: Mapping[str, list[Match]], *, fresh: bool) -> Iterator[MatchFile]:
    """Opens a board's folder for this process alone; the manifest takes over the sessions of the one before."""
    before = load_manifest(folder) if not fresh else None
    if fresh and (folder / MANIFEST).exists():
        with TraceWriter(folder / TRACES):  # nobody else plays here
            for name in (MATCHES, RATINGS, CSV, MARKDOWN, MANIFEST):
                (folder / name).unlink(missing_ok=True)
        (folder / TRACES).unlink()
    kept = [name for name in (MATCHES, TRACES) if (folder / name).exists() and (folder / name).stat().st_size]
    if kept and before is None:
        raise BoardError(f"{folder} has a {kept[0]} and is no board's folder; choose another one")
    if before is not None and kept:
        changed = changes(before, manifest)
        if changed:
            raise BoardError(
                f"{folder} holds matches under other settings ({'; '.join(changed)}). Give those settings to go on with"
                " it, choose another folder, or delete it with --fresh"
            )
        manifest.sessions = before.sessions
    with MatchFile(folder, {match.id: match for matches in schedule.values() for match in matches}) as file:
        yield file


def _play(
    schedule: Mapping[str, list[Match]],
    players: Mapping[str, _Players],
    runtime: Runtime,
    rows: Mapping[str, MatchRow],
    add: Callable[[Trace], object],
    show_progress: bool,
) -> None:
    """Plays the missing matches of all pools; `add` puts each into `rows`."""
    missing = {pool: _missing(matches, rows) for pool, matches in schedule.items()}
    total = sum(map(len, missing.values()))
    with progress(total, shown=show_progress) as count:
        keeper = _Keeper(add, count, total)
        for pool, matches in missing.items():
            found = players[pool]
            play_matches(matches, found.entrants, runtime, keeper.keep, officials=found.officials)
    if keeper.failure is not None and not any(row.status != "void" for row in rows.values()):
        raise EngineError(f"all matches are void; the last: {_words(keeper.failure)}")


class _Keeper:
    """Takes the traces as they come, and stops the batch when the engine is gone."""

    def __init__(self, add: Callable[[Trace], object], count: Callable[[], None], total: int) -> None:
        self.failure: Failure | None = None
        self._add = add
        self._count = count
        self._total = total
        self._finished = 0
        self._faults: Counter[str | None] = Counter()

    def keep(self, trace: Trace) -> None:
        """Keeps one match; one that was cancelled is just not played yet."""
        if trace.failure is not None and trace.failure.kind == "CancelledError":
            return
        self._add(trace)
        self._count()
        if trace.failure is None:
            self._finished += 1
            for seat in trace.seats.values():
                self._faults[seat.policy] = 0
            return
        self.failure = trace.failure
        if trace.failure.boundary != "engine":
            return
        # Of several engines one may be gone while the others' matches go on.
        model = None if trace.failure.seat is None else trace.seats[trace.failure.seat].policy
        self._faults[model] += 1
        if self._faults[model] == _DEAD:
            whose = "" if model is None else f" of {model}"
            raise EngineError(
                f"the engine{whose} failed {_DEAD} matches in a row ({_words(trace.failure)}). {self._finished} of"
                f" {self._total} matches were finished and are kept; the same command plays the others"
            )


def _words(failure: Failure) -> str:
    return f"{failure.kind}: {failure.message}"


def _missing(matches: Sequence[Match], rows: Mapping[str, MatchRow]) -> list[Match]:
    return [match for match in matches if match.id not in rows or rows[match.id].status == "void"]


def _remember(schedule: Mapping[str, list[Match]], rows: dict[str, MatchRow]) -> Callable[[Trace], None]:
    by_id = {match.id: match for matches in schedule.values() for match in matches}

    def add(trace: Trace) -> None:
        rows[trace.id] = row_of(by_id[trace.id], trace)

    return add


def _players(board: Board, objects: Mapping[str, Agent], runtime: Runtime) -> dict[str, _Players]:
    return {
        game.pool: _Players(
            entrants={
                entrant.name: objects[entrant.name]
                if entrant.name in objects
                else _player(entrant, game.specs()[0].id, runtime)
                for entrant in board.entrants
            },
            officials={
                holder.words: _player(holder, game.specs()[0].id, runtime) for holder in game.holders().values()
            },
        )
        for game in board.games
    }


def _player(who: Entrant, env_id: str, runtime: Runtime) -> Agent:
    """Makes an agent, and refuses another game's scripted player, every match of which would be void."""
    agent = make_agent(who.agent, env_id=env_id, runtime=runtime, **who.settings)
    game, _, player = who.agent.rpartition("/")
    if game in registry and env_class(game).baselines[player] not in env_class(env_id).baselines.values():
        own = ", ".join(env_class(env_id).baselines) or "none"
        raise UsageError(
            f'"{who.agent}" is a scripted player of {game} and can\'t play {env_id}; that has: {own}. A bare word, e.g.'
            f' agent = "{player}", is the player of that name of each game'
        )
    return agent


def _weights(agents: Mapping[str, Agent]) -> dict[str, Json]:
    """Returns what is known of the weights of each agent that is a model, by name."""
    found: dict[str, Json] = {}
    for name, agent in agents.items():
        if agent.policy is not None:
            # A policy that the caller serves itself has no folder; a model that isn't there is told when it is loaded.
            with contextlib.suppress(UnknownName):
                found[name] = weights_of(resolve_model(agent.policy))
    return found


def _save_engines(manifest: Manifest, folder: Path, runtime: Runtime, players: Mapping[str, _Players]) -> None:
    """Writes which engine served which models, and which entrants and officials played with them."""
    served: dict[str, set[str]] = defaultdict(set)
    for found in players.values():
        for name, agent in (*found.entrants.items(), *found.officials.items()):
            if agent.policy is not None:
                served[agent.policy].add(name)
    manifest.sessions[-1]["engines"] = [
        {**engine, "players": sorted({name for policy in engine["policies"] for name in served[policy]})}
        for engine in runtime.engines()
    ]
    manifest.save(folder)


def _entrant(name: str, given: str | Agent | Mapping[str, Any]) -> Entrant:
    if isinstance(given, str):
        return Entrant(name=name, agent=given)
    if isinstance(given, Mapping):
        table = entrant_table(given, where=f"entrant {name}")
        return Entrant(name=name, agent=table["agent"], settings=table["settings"])
    return Entrant(name=name, agent=make_agent(given).name)


def _games(envs: Sequence[str | EnvSpec | Game]) -> list[Game]:
    """Returns each env as a pool; specs of one game are told apart by their arguments."""
    ids = [env if isinstance(env, str) else env.id for env in envs]
    found = []
    for env, env_id in zip(envs, ids, strict=True):
        if isinstance(env, Game):
            found.append(env)
        else:
            args = env.kwargs if isinstance(env, EnvSpec) else {}
            words = [env_id, *(f"{key}={value}" for key, value in args.items())]
            found.append(Game(id=env_id, args=args, name=" ".join(words) if ids.count(env_id) > 1 else ""))
    return found


def _once(entrants: Sequence[str]) -> Sequence[str]:
    for name in entrants:
        if not isinstance(name, str):
            raise UsageError(f"the entrant {name!r:.60} has no name; give a mapping from names to agents")
        if entrants.count(name) > 1:
            raise UsageError(f'"{name}" is an entrant twice; give a mapping that names each setting')
    return entrants


__all__ = ["evaluate", "play_board", "play_schedule"]
