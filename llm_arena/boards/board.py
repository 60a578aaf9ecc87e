"""A board: entrants, games and a seed, from which every match that is to be played follows.

name = "kuhn"
matches = 200                 # for every two entrants and each game
anchor = "random"             # has 1000 points; without an anchor, the mean has

[engine]                      # what serves the models: kind, devices, dtype, and vLLM's own arguments
kind = "transformers"

[[entrants]]
name = "random"
agent = "random-legal"        # all other keys are settings of the agent, e.g. max_new_tokens = 24

[[games]]                     # each game is a pool of its own: ratings of two games don't mix
id = "kuhn-poker-v0"
args = {retries = 1}
starts = []                   # arguments that differ from block to block, e.g. [{topic = "tea"}, {topic = "ink"}]
seating = "versus"            # "self": each entrant holds all seats, as it always does in a cooperative game

[games.officials]             # of the game above: who holds the seats that are not ranked, by role or seat
judge = "reward-model:OWNER/NAME"    # with settings: {agent = "smollm2-135m", temperature = 0.0}
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import ArenaError, UnknownName, UsageError, did_you_mean
from llm_arena.matchmaking import Match, round_robin, seats_of
from llm_arena.rating.bradley_terry import PRIOR_SDS, PriorSd
from llm_arena.registry import make_env
from llm_arena.types import EnvSpec, Json

Seating = Literal["versus", "self"]
_T = TypeVar("_T")
_ENTRANT = ("name", "agent")
_SECRET = re.compile(r"(^|_)(token|secret|password|key)$")


class BoardError(ArenaError, ValueError):
    """A board's folder can't be used: it holds other matches, or something in it can't be read."""


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """Who is ranked: an agent with its settings. Two settings of one model are two entrants."""

    name: str
    agent: str
    "An agent string, e.g. `random-legal` or `smollm2-135m`."
    settings: dict[str, Json] = {}
    "Of the agent, e.g. `{'max_new_tokens': 24}`."

    @property
    def hash(self) -> str:
        """16 hex digits that change with the agent and its settings, and not with the name."""
        return digest({"agent": self.agent, "settings": self.settings})

    @property
    def words(self) -> str:
        """The agent and its settings on one line."""
        return " ".join([self.agent, *(f"{key}={value}" for key, value in sorted(self.settings.items()))])


class Game(msgspec.Struct, frozen=True, kw_only=True):
    """One pool: a game with fixed rules, whose matches are rated together."""

    id: str
    name: str = ""
    "Of the pool; by default the id."
    args: dict[str, Json] = {}
    "Arguments of the game, the same in all matches."
    starts: list[dict[str, Json]] = []
    "Further arguments, used in turn block by block; none: all blocks have the same."
    seating: Seating | None = None
    "None: `self` in a cooperative game, else `versus`."
    officials: dict[str, str | dict[str, Json]] = {}
    """Who holds the seats that take no part in the contest, by role or seat: an agent string, or a table such as
    `{"agent": "smollm2-135m", "temperature": 0.0}`."""

    def holders(self) -> dict[str, Entrant]:
        """Returns the agent of each official, by role or seat.

        Raises:
            UsageError: a table has no agent.
        """
        return {
            name: Entrant(name=name, agent=given)
            if isinstance(given, str)
            else Entrant(**{**entrant_table(given, where=f"game {self.pool}, official {name}"), "name": name})
            for name, given in self.officials.items()
        }

    def contest(self) -> int:
        """Returns how many seats entrants hold."""
        return len(seats_of(self.specs()[0])[0])

    def seated(self) -> Seating:
        """Returns who sits together: `self` where no two entrants meet, and nobody gets a rating.

        Raises:
            UsageError: entrants are to meet in a cooperative game.
        """
        cooperative = make_env(self.specs()[0].id, **self.specs()[0].kwargs).cooperative
        if cooperative and self.seating == "versus":
            raise UsageError(
                f'game {self.pool}: seating = "versus", but in {self.id} all seats win or lose together, so that no'
                ' match can rank them; leave it out, or give "self": each entrant holds all seats'
            )
        return "self" if cooperative or self.contest() == 1 else self.seating or "versus"

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self.name or self.id

    def specs(self) -> list[EnvSpec]:
        """Returns the spec of each start, with all arguments of the game, so that a changed default is a change."""
        return [make_env(self.id, **{**self.args, **start}).spec for start in self.starts or [{}]]


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides a leaderboard."""

    name: str
    summary: str = ""
    entrants: list[Entrant]
    games: list[Game]
    matches: int = 100
    "For each set of entrants that meets (each pair, with two seats) in each game; rounded up to whole blocks."
    seed: int = 0
    anchor: str | None = None
    prior_sd: PriorSd = "fitted"
    "Spread of strengths before any match, in nats; `fitted`: chosen by the matches, from 1.5."
    engine: EngineSettings = EngineSettings()

    def __post_init__(self) -> None:
        """Checks names and numbers.

        Raises:
            UsageError: a name is missing, can't be used or stands there twice, or a number is out of range.
            UnknownName: the anchor is no entrant.
        """
        for what, names in (
            ("entrant", [entrant.name for entrant in self.entrants]),
            ("game", [game.pool for game in self.games]),
        ):
            if not names:
                raise UsageError(f"board {self.name}: no {what} is given; add a table [[{what}s]]")
            for name in names:
                if not name or "|" in name or not name.isprintable():
                    raise UsageError(
                        f"board {self.name}: {name!r} can't be the name of this {what}; use printable text without |"
                    )
                if names.count(name) > 1:
                    raise UsageError(f'board {self.name}: two {what}s are called "{name}"; give each a name of its own')
        players = [*self.entrants, *(holder for game in self.games for holder in game.holders().values())]
        for key in [*self.engine.vllm_args(), *(key for player in players for key in player.settings)]:
            if _SECRET.search(key):
                raise UsageError(
                    f'board {self.name}: the setting "{key}" looks like a secret, and boards are written into files'
                    " that others read; give it in an environment variable"
                )
        if self.matches < 1:
            raise UsageError(f"board {self.name}: matches = {self.matches}; expected 1 or more")
        if self.prior_sd != "fitted" and not 0 < self.prior_sd < float("inf"):
            raise UsageError(
                f"board {self.name}: prior_sd = {self.prior_sd}; expected a number above 0, in nats, e.g."
                f' {PRIOR_SDS[0]}, or "fitted"'
            )
        names = [entrant.name for entrant in self.entrants]
        if self.anchor is not None and self.anchor not in names:
            raise UnknownName(
                f'board {self.name}: the anchor "{self.anchor}" is no entrant.{did_you_mean(self.anchor, names)}'
                f" There are: {', '.join(names)}"
            )

    def schedule(self) -> dict[str, list[Match]]:
        """Returns the matches of each pool, in the order in which they are played.

        Raises:
            UsageError, UnknownName: a game can't be made like this, has more seats than there are entrants, or an
                official too few or too many.
        """
        players = [entrant.name for entrant in self.entrants]
        found = {}
        for game in self.games:
            specs, seats = game.specs(), game.contest()
            check_officials(game, specs)
            alone = game.seated() == "self"
            found[game.pool] = round_robin(
                specs,
                players,
                blocks=self.matches if alone else -(-self.matches // seats),
                seed=self.seed,
                pool=game.pool,
                alone=alone,
                officials={name: holder.words for name, holder in game.holders().items()},
            )
        return found

    def rounded(self) -> list[str]:
        """Returns a line for each game in which whole blocks make more matches than were asked for."""
        lines = []
        for game in self.games:
            seats = game.contest()
            if game.seated() == "versus" and self.matches % seats:
                up = -(-self.matches // seats) * seats
                lines.append(f"{game.pool}: {self.matches} matches are rounded up to {up}, whole blocks of {seats}")
        return lines


def digest(value: Json) -> str:
    """Returns 16 hex digits of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def shelf() -> dict[str, Path]:
    """Returns the boards of the `leaderboards/` shelf by name."""
    spec = importlib.util.find_spec("llm_arena.leaderboards")
    folders = (spec.submodule_search_locations or []) if spec else []
    return {file.stem: file for folder in folders for file in sorted(Path(folder).glob("*.toml"))}


def read_board(path: Path) -> Board:
    """Reads a board's TOML file.

    Raises:
        UsageError: the file can't be read, a value doesn't fit, or a key is missing.
        UnknownName: a key that no board has.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror}); give a board's TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    return board_of(table, name=path.stem, where=str(path))


def board_of(table: Mapping[str, Any], *, name: str, where: str) -> Board:
    """Returns the board that a TOML table describes.

    Args:
        table: as read from a file.
        name: the board's name, if the table has none.
        where: what to call the table in errors.

    Raises:
        UsageError, UnknownName: as `read_board`.
    """
    _check_keys(table, Board.__struct_fields__, where)
    entrants = [
        entrant_table(item, where=f"{where}, entrant {number}")
        for number, item in enumerate(_tables(table, "entrants", where), start=1)
    ]
    games = _tables(table, "games", where)
    for number, item in enumerate(games, start=1):
        _check_keys(item, Game.__struct_fields__, f"{where}, game {number}")
    engine = _engine(table.get("engine", {}), where)
    board = _convert({"name": name, **table, "entrants": entrants, "games": games, "engine": engine}, Board, where)
    # Built again, because msgspec leaves defaults out of what it makes, and a manifest is to show them.
    return msgspec.structs.replace(board, engine=dataclasses.replace(board.engine))


def entrant_table(item: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Returns an entrant's table with its settings apart from its name and agent; its name is by default its agent.

    Raises:
        UsageError: the agent is missing.
    """
    if not isinstance(item.get("agent"), str):
        near = did_you_mean("agent", item)
        raise UsageError(f'{where}: a key "agent" with an agent string is missing, e.g. agent = "random-legal".{near}')
    settings = {key: value for key, value in item.items() if key not in _ENTRANT}
    return {"name": item.get("name", item["agent"]), "agent": item["agent"], "settings": settings}


def check_officials(game: Game, specs: Iterable[EnvSpec]) -> None:
    """Refuses officials that no start has a seat for.

    Raises:
        UnknownName: there is one.
    """
    known = [name for spec in specs for seat, role in seats_of(spec)[1].items() for name in (role, seat)]
    for name in game.officials:
        if name not in known:
            has = f"it has: {', '.join(dict.fromkeys(known))}" if known else "with these arguments it has none"
            raise UnknownName(f'game {game.pool}: no official "{name}"; {has}.{did_you_mean(name, known)}')


def _engine(table: Any, where: str) -> dict[str, Any]:
    """Returns a table [engine] with vLLM's own arguments apart from our settings."""
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: engine must be a table [engine], got {table!r}")
    known = [field.name for field in dataclasses.fields(EngineSettings) if field.name != "args"]
    own = {key: str(value) if key == "devices" else value for key, value in table.items() if key in known}
    rest = {key: value for key, value in table.items() if key not in known}
    for key in rest:
        if own.get("kind", "transformers") == "transformers":
            near = did_you_mean(key, known)
            raise UnknownName(f"{where}: unknown key engine.{key}.{near} It is no setting of the transformers engine.")
    return {**own, "args": json.dumps(rest, sort_keys=True)}


def _tables(table: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    items = table.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise UsageError(f"{where}: {key} must be tables, each headed [[{key}]]")
    return items


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UnknownName(f"{where}: unknown key {key!r}.{did_you_mean(key, known)} There are: {', '.join(known)}")


def _convert(table: Mapping[str, Any], kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ArenaError):  # of a check of our own, which says more
            raise error.__cause__ from None
        raise UsageError(f"{where}: {error}") from None


__all__ = [
    "Board",
    "BoardError",
    "Entrant",
    "Game",
    "Seating",
    "board_of",
    "check_officials",
    "digest",
    "entrant_table",
    "read_board",
    "shelf",
]
