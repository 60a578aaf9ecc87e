"""Cross-play: every entrant in one role meets every entrant in the other, on the same starts.

A reward that rises while both sides learn says nothing about either: one may have learned, or the other become weaker.
A table of {trained, initial} x {trained, initial, third party} tells the two apart. Down a column the partner stays the
same, so a difference is the row's; along a row it is the column's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_arena.agent import Agent
from llm_arena.boards.board import Board, Entrant, Game, check_officials, digest, entrant_table
from llm_arena.boards.cells import Place
from llm_arena.boards.cross_table import CrossPlay, tabulate
from llm_arena.boards.evaluate import play_schedule
from llm_arena.boards.manifest import write_whole
from llm_arena.engines.settings import EngineKind, EngineSettings
from llm_arena.env import ArenaEnv
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.matchmaking import Match, holders, seats_of
from llm_arena.rating import MatchRow
from llm_arena.registry import make_env
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.sides import Sides, held_out, sides
from llm_arena.types import EnvSpec, Json

EPISODES = 100
"""Episodes of a cell where nothing else is said."""

JSON, MARKDOWN = "cross_play.json", "cross_play.md"

Entrants = Sequence[str] | Mapping[str, str | Agent | Mapping[str, Any]]
Roles = Sequence[str] | Mapping[str, Sequence[str]]
"""The role of the rows, and that of the columns; or for each the entrants that hold it."""


def cross_play(
    entrants: Entrants,
    env: str | EnvSpec | ArenaEnv,
    *,
    roles: Roles | None = None,
    starts: Sequence[Mapping[str, Json]] = (),
    episodes: int | None = None,
    seed: int = 0,
    officials: Mapping[str, str | dict[str, Json]] | None = None,
    folder: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    engine: EngineKind | EngineSettings = "transformers",
    runtime: Runtime | None = None,
    show_progress: bool = False,
    **settings: Any,
) -> CrossPlay:
    """Lets every entrant in one role meet every entrant in the other, and returns the table. Works in notebooks too.

    All cells have the same starts and episode seeds, and no training saw them: a game that keeps problems apart
    (`split`) takes the held-out ones unless told otherwise, and seeds are derived from `seed` in a way of their own.

    Example:
        >>> import llm_arena
        >>> found = llm_arena.cross_play({"best": "optimal", "chance": "random-legal"}, "kuhn-poker-v0", episodes=20)
        >>> found.cell("best", "chance").episodes
        20

    Args:
        entrants: agent strings, or names with an agent string, an agent object, or a table such as
            `{"agent": "smollm2-135m", "max_new_tokens": 24}`; e.g. `{"trained": "runs/x/final", "initial":
            "smollm2-135m", "third party": "random-legal"}`. Differences are told between the first and each other.
        env: the game; of an `EnvSpec` all is taken as it stands there, `split` too.
        roles: which role or seat the rows hold, and which the columns; one alone: the columns hold all others. A
            mapping says who holds it, `{"thinker": ["trained", "initial"], "verifier": ["trained", "scripted"]}`.
            None: the two roles of the game; in a game of one role the row's entrant has each seat in turn.
        starts: arguments of the game that differ from start to start, e.g. `[{"topic": "tea"}, {"topic": "ink"}]`,
            used in turn. None: the game deals.
        episodes: of each cell, rounded up to whole starts. None: each of `starts` once, else 100.
        seed: decides all starts and all sampling.
        officials: who holds the seats that take no part in the contest, by role or seat, e.g. `{"judge": "AGENT"}`.
        folder: where matches, traces and tables are kept; the same call goes on where it was stopped. None: nowhere.
        fresh: delete what the folder has of an earlier call.
        engine: what serves models where no runtime is given.
        runtime: where to play; None makes one.
        show_progress: on standard error.
        settings: of the models among the entrants, e.g. `max_new_tokens=24`; a table's own go before.

    Raises:
        UnknownName, UsageError: an entrant, a role, the game or a setting is wrong.
        BoardError: the folder holds matches that these settings would not play.
        EngineError: the engine died, or no match could be played; what was finished is kept.
    """
    if episodes is not None and (not isinstance(episodes, int) or episodes < 1):
        raise UsageError(f"episodes={episodes!r}; give a whole number of 1 or more")
    path = None if folder is None else Path(folder)
    named = _named(entrants)
    game = _game(env, starts, officials or {})
    engine = EngineSettings(kind=engine) if isinstance(engine, str) else engine
    board = Board(
        name="cross-play" if path is None else path.name or "cross-play",
        entrants=[_entrant(name, given, game.id, settings) for name, given in named.items()],
        games=[game],
        matches=episodes or len(starts) or EPISODES,
        seed=seed,
        engine=engine,
    )
    plan = _plan(board, game, roles, whole=episodes is None and bool(starts))

    def finish(rows: Iterable[MatchRow]) -> CrossPlay:
        found = tabulate(game.pool, plan.sides, plan.rows, plan.columns, plan.places, rows, seed=seed)
        if path is not None:
            write_whole(path / JSON, json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
            write_whole(path / MARKDOWN, found.to_markdown())
        return found

    return play_schedule(
        board,
        {game.pool: plan.matches},
        finish,
        folder=path,
        objects={name: given for name, given in named.items() if not isinstance(given, str | Mapping)},
        fresh=fresh,
        runtime=runtime,
        show_progress=show_progress,
    )


@dataclass(frozen=True)
class _Plan:
    sides: Sides
    rows: list[str]
    columns: list[str]
    places: list[Place]
    matches: list[Match]


def _plan(board: Board, game: Game, roles: Roles | None, *, whole: bool) -> _Plan:
    """Returns who sits where in which match.

    A match is named by its start and by who sits where, so that the same seating of two cells (rows and columns
    exchanged) is played once.

    Args:
        board: the entrants, and how many episodes.
        game: the game.
        roles: as `cross_play` has them.
        whole: play each start once, however many episodes that makes.
    """
    specs = game.specs()
    check_officials(game, specs)
    names = list(roles) if roles is not None else None
    envs = [make_env(spec) for spec in specs]
    found = [sides(env, names) for env in envs]
    players = [entrant.name for entrant in board.entrants]
    held = list(roles.values()) if isinstance(roles, Mapping) else []
    rows, columns = (_holding(held[side], players) if len(held) > side else players for side in (0, 1))
    for entrants, way in ((rows, 0), (columns, 1)):
        for name in entrants:
            agent = next(entrant.agent for entrant in board.entrants if entrant.name == name)
            _check_plays(name, agent, envs[0], [seat for seating in found[0].seatings for seat in seating[way]])
    officials = {name: holder.words for name, holder in game.holders().items()}
    count = len(specs) if whole else -(-board.matches // len(found[0].seatings))
    places: list[Place] = []
    matches: dict[str, Match] = {}
    for index in range(count):
        spec, here = specs[index % len(specs)], found[index % len(specs)]
        judges = holders(spec, seats_of(spec)[1], officials)
        seed = int(digest(["cross-play", board.seed, index]), 16)
        for row in rows:
            for column in columns:
                for own, other in here.seatings:
                    seated = {**dict.fromkeys(own, row), **dict.fromkeys(other, column)}
                    ordered = {seat: seated[seat] for seat in sorted(seated)}
                    name = "|".join([str(index), *ordered.values()])
                    matches.setdefault(
                        name,
                        Match(
                            id=name,
                            block=str(index),
                            pool=game.pool,
                            spec=spec,
                            seed=seed,
                            entrants=ordered,
                            officials=judges,
                        ),
                    )
                    places.append(Place(row=row, column=column, start=index, match=name, seats=own, others=other))
    return _Plan(found[0], rows, columns, places, list(matches.values()))


def _named(entrants: Entrants) -> Mapping[str, str | Agent | Mapping[str, Any]]:
    if isinstance(entrants, str):
        raise UsageError(f'entrants is "{entrants}"; give a mapping such as {{"trained": "{entrants}", "other": ...}}')
    if isinstance(entrants, Mapping):
        return entrants
    if len(set(entrants)) != len(entrants):
        raise UsageError(f"an entrant stands there twice: {list(entrants)}; give a mapping that names each")
    return {name: name for name in entrants}


def _game(
    env: str | EnvSpec | ArenaEnv, starts: Sequence[Mapping[str, Json]], officials: Mapping[str, str | dict[str, Json]]
) -> Game:
    """Returns the game with all its arguments, held-out problems where it keeps some."""
    if isinstance(env, ArenaEnv):
        spec, chosen = env.spec, list(env.given_arguments)
    else:
        spec, chosen = make_env(env).spec, list(env.kwargs) if isinstance(env, EnvSpec) else []
    keys = [key for start in starts for key in start]
    spec = held_out(spec, [*chosen, *keys])
    return Game(id=spec.id, args=spec.kwargs, starts=[dict(start) for start in starts], officials=dict(officials))


def _entrant(name: str, given: str | Agent | Mapping[str, Any], env_id: str, settings: Mapping[str, Any]) -> Entrant:
    if isinstance(given, Mapping):
        table = entrant_table(given, where=f"entrant {name}")
        agent, own = table["agent"], table["settings"]
    elif isinstance(given, str):
        agent, own = given, {}
    else:
        return Entrant(name=name, agent=make_agent(given).name)
    return Entrant(name=name, agent=agent, settings={**_for(agent, env_id, settings), **own})


def _for(agent: str, env_id: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings if the agent is a model, and none for a script."""
    if not settings:
        return {}
    with Runtime() as runtime:  # nothing is loaded in it
        return dict(settings) if make_agent(agent, env_id=env_id, runtime=runtime).policy is not None else {}


def _holding(names: Sequence[str], players: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not names:
        raise UsageError(f"roles has {names!r} for a role; expected a list of entrants, e.g. {list(players)}")
    for name in names:
        if name not in players:
            raise UnknownName(
                f'roles names "{name}", which is no entrant.{did_you_mean(name, players)} There are:'
                f" {', '.join(players)}"
            )
    return list(dict.fromkeys(names))


def _check_plays(name: str, agent: str, env: ArenaEnv, seats: Sequence[str]) -> None:
    """Refuses a scripted player in a role that it doesn't play: every match of it would be void."""
    plays = env.baseline_roles.get(agent.removeprefix(f"{env.spec.id}/"))
    wrong = [] if plays is None else [env.role_of(seat) for seat in seats if env.role_of(seat) not in plays]
    if wrong and plays is not None:
        raise UsageError(
            f'{env.spec.id}: the entrant "{name}" ({agent}) plays {" and ".join(plays)}, and can\'t be {wrong[0]}; say'
            f' who holds which role, e.g. roles={{"{wrong[0]}": [...], "{plays[0]}": ["{name}", ...]}}'
        )


__all__ = ["EPISODES", "JSON", "MARKDOWN", "cross_play"]
