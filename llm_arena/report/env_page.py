"""The page of a game: Markdown from the game's own docstring and spec, and one recorded episode."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

from llm_arena.env import ArenaEnv
from llm_arena.errors import MissingExtra
from llm_arena.report.text import message_text, told, visible
from llm_arena.types import Json, Trace

REQUIRED = ("Roles", "Actions", "Rewards", "Ends", "Sees", "Exploits")
"""Sections that the docstring of a game's module has."""

MAX_TURNS = 16
"""Turns of the example that are shown."""

MAX_REPEATED = 60
"""Characters of a message that are shown again when another seat was told the same."""

MAX_CHARACTERS = 1200
"""Characters of a message that are shown."""

_SECTION = re.compile(r"^([A-Z][a-z]+)(?: {2,}|$)")
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*)")


def sections(game: type[ArenaEnv]) -> dict[str, str]:
    """Returns the sections of a game's docstring by label, with their line breaks."""
    found: dict[str, list[str]] = {}
    label = ""
    for line in (inspect.getdoc(sys.modules[game.__module__]) or "").splitlines()[1:]:
        if match := _SECTION.match(line):
            label = match[1]
            found[label] = [line[match.end() :]]
        elif label:
            found[label].append(line[10:] if line[:10].isspace() else line)
    return {name: "\n".join(lines).strip() for name, lines in found.items()}


def env_page(game: type[ArenaEnv], example: Trace | None = None) -> str:
    """Returns the page of `game`.

    Args:
        game: the game's class.
        example: a recorded episode to show; None for none.
    """
    env_id, sentence = _title(game)
    lines = [f"# {env_id}", "", _prose(sentence), "", *_card(game), ""]
    for name, text in sections(game).items():
        # a name of a seat or an argument keeps its case
        begins_with_word = re.match(r"[a-z]+[ ,:;.]", text)
        lines += [f"## {name}", "", *_paragraphs(text[:1].upper() + text[1:] if begins_with_word else text)]
    lines += ["## Arguments", "", *_arguments(game), ""]
    if game.baselines:
        lines += ["## Scripted players", ""]
        for name, player in game.baselines.items():
            says = (inspect.getdoc(player) or "").partition("\n\n")[0].replace("\n", " ")
            plays = f" ({', '.join(game.baseline_roles[name])})" if name in game.baseline_roles else ""
            lines.append(f"- `{game.id}/{name}`{plays}: {_prose(says)}")
        lines.append("")
    lines += ["## Try it", "", *_commands(game), ""]
    if example is not None:
        lines += ["## An episode", "", *_episode(example), ""]
    return "\n".join(lines)


def _title(game: type[ArenaEnv]) -> tuple[str, str]:
    """Returns (id, what it is in a sentence)."""
    title = (inspect.getdoc(sys.modules[game.__module__]) or game.id).splitlines()[0]
    sentence = title.partition(": ")[2] or game.summary
    return game.id, sentence[:1].upper() + sentence[1:]


def _card(game: type[ArenaEnv]) -> Iterator[str]:
    try:
        env: ArenaEnv | type[ArenaEnv] = game()  # some say by their arguments how long they are and what they hide
    except MissingExtra:
        env = game
    yield "| | |"
    yield "|---|---|"
    counts = {
        role: str(count) if isinstance(count, int) else f"{count[0]} to {count[1]}"
        for role, count in game.roles.items()
    }
    yield f"| seats | {', '.join(f'{role}: {count}' for role, count in counts.items())} |"
    if game.officials:
        yield f"| officials (not ranked) | {', '.join(game.officials)} |"
    kind = "all seats win or lose together" if game.cooperative else "zero-sum" if env.zero_sum else "general-sum"
    yield f"| rewards | {kind} |"
    yield f"| order | {'every phase asks all seats at once' if game.simultaneous else 'in turn, or in phases'} |"
    yield f"| turns | at most {env.max_turns} by default |"
    yield f"| bad replies | `{env.illegal}` after {env.retries} retries by default |"
    if env.hidden:
        yield f"| hidden state | {', '.join(f'`{name}`' for name in env.hidden)} |"


def _paragraphs(text: str) -> Iterator[str]:
    """A section as Markdown: tables and lists that its author aligned by hand stay as they are."""
    for block in re.split(r"\n\s*\n", text):
        if re.search(r"^ {2,}\S", block, re.MULTILINE) or re.search(r"\S {3,}\S", block):
            yield from ["```text", *block.splitlines(), "```", ""]
        else:
            yield from [_prose(" ".join(block.split())), ""]


def _prose(text: str) -> str:
    """Returns text in which no `<tag>` outside backticks is taken for HTML."""
    parts = text.split("`")
    return "`".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(parts))


def _arguments(game: type[ArenaEnv]) -> Iterator[str]:
    """The game's own arguments; those that every game takes stand in the index."""
    own = {name: value for name, value in game.arguments().items() if name not in ArenaEnv.arguments()}
    if not own:
        yield "None of its own. [Every game](README.md#arguments-of-every-game) takes some."
        return
    described = _described(game)
    yield "| argument | default | what |"
    yield "|---|---|---|"
    for name, default in own.items():
        yield f"| `{name}` | `{_short(default)}` | {_prose(described.get(name, '')).replace('|', chr(92) + '|')} |"
    yield ""
    yield "[Every game](README.md#arguments-of-every-game) takes some more."


def _described(game: type[ArenaEnv]) -> dict[str, str]:
    """What the class docstring says of each argument."""
    found: dict[str, str] = {}
    name = ""
    _, _, args = (inspect.getdoc(game) or "").partition("Args:\n")
    for line in args.splitlines():
        if not line.strip():
            break
        if match := _ARGUMENT.match(line):
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] += " " + line.strip()
    return found


def _commands(game: type[ArenaEnv]) -> list[str]:
    role = next(iter(game.roles))
    partners = [name for name, roles in game.baseline_roles.items() if role not in roles]
    others = f"--agents {partners[0]}" if partners else ""
    against = "with a scripted partner" if partners else "against random legal replies"
    return [
        "```bash",
        f"llm-arena play {game.id} --seat {role}_0 {others}".rstrip() + f"  # you, {against}",
        f"llm-arena play {game.id} --agents smollm2-135m",
        "```",
    ]


def _episode(trace: Trace) -> Iterator[str]:
    who = ", ".join(f"{seat}: {info.agent}" for seat, info in trace.seats.items())
    yield f"Seed {trace.seed}; {who}. What each seat is told before its turn is indented."
    yield ""
    fence = "`" * max([4, *(1 + len(run) for turn in trace.turns for run in re.findall(r"`+", turn.text))])
    yield f"{fence}text"
    seen: set[str] = set()
    for turn in trace.turns[:MAX_TURNS]:
        for message in told(turn):
            example = "example reply: " * (message["role"] == "assistant")
            text = example + _clipped(message_text(message))
            if text in seen and len(text) > MAX_REPEATED:
                text = f"({text[:MAX_REPEATED].splitlines()[0]} ... as above)"
            seen.add(text)
            yield from (f"    {line}".rstrip() for line in text.splitlines())
        yield from f"{turn.seat}: {_clipped(turn.text)}".splitlines()
    if len(trace.turns) > MAX_TURNS:
        yield f"... {len(trace.turns) - MAX_TURNS} more turns"
    if trace.outcome is not None:
        returns = ", ".join(f"{seat} {value:+.3g}" for seat, value in trace.returns.items())
        yield from [f"=> {trace.outcome.reason}", f"   {returns}"]
    yield fence


def _clipped(text: str) -> str:
    text = visible(text)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ... ({len(text)} characters)"


def _short(value: Json) -> str:
    return repr(value)


def env_index(games: list[type[ArenaEnv]]) -> str:
    """Returns the index of the games' pages, and what every game takes."""
    lines = ["# Games", "", "| id | seats | what |", "|---|---|---|"]
    for game in games:
        seats = ", ".join(
            f"{role} {count if isinstance(count, int) else f'{count[0]}-{count[1]}'}"
            for role, count in game.roles.items()
        )
        lines.append(f"| [{game.id}]({game.id}.md) | {seats} | {_prose(_title(game)[1])} |")
    lines += ["", "## Arguments of every game", "", "| argument | default | what |", "|---|---|---|"]
    described = _described(ArenaEnv)
    for name, default in ArenaEnv.arguments().items():
        lines.append(f"| `{name}` | `{_short(default)}` | {described.get(name, '')} |")
    return "\n".join([*lines, ""])
