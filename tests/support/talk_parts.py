"""A game in which one seat is told a script, and what must hold of every conversation that a model leads in it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.env import ArenaEnv
from llm_arena.recorder import sequences
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
from llm_arena.types import Json, Message, Move, Outcome, Reply, TokenSequence, Trace
from tool_parts import TOOLS

Told = Sequence[tuple[str, str]]
"""What is told before one turn: (role, text) pairs; with `("view", "")` first they replace the whole view."""
Sent = list[tuple[list[int], list[int]]]
"""For each turn, the ids that were sent and those that were sampled."""


class Talk(ArenaEnv):
    """One speaker; the script says what it is told. Pays 1 at the end."""

    id = "test-talk-v0"
    roles = {"speaker": 1}
    max_turns = 40

    def __init__(
        self, *, script: list[list[list[str]]], tools: bool = False, guide: str | None = None, **options: Any
    ) -> None:
        super().__init__(counts={"speaker": 1}, **options)
        self.script = script
        self.with_tools = tools
        self.guide = guide

    def begin(self, rng: np.random.Generator) -> str:
        """Tells the first part."""
        self.place = 0
        return self._tell_next()

    def tools(self, seat: str) -> list[Json]:
        """Two tools, or none."""
        return TOOLS if self.with_tools else []

    def grammar(self, seat: str) -> Json:
        """The guide, for the first reply alone."""
        return self.guide if self.place == 1 else None

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Anything goes."""
        return "go"

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Tells the next part, or ends."""
        if self.place == len(self.script):
            return Move(rewards={seat: 1.0}, outcome=Outcome(winners=[seat], reason="said all"))
        return Move(next=self._tell_next())

    def _tell_next(self) -> str:
        told = self.script[self.place]
        if told[0][0] == "view":
            self.replace_view("speaker_0", [Message(role=role, content=text) for role, text in told[1:]])  # type: ignore[typeddict-item]  # any role
            told = []
        for role, text in told:
            self.tell("speaker_0", text, role=role)  # type: ignore[arg-type]  # any role
        self.place += 1
        return "speaker_0"


def ids_of(chat: ChatFormat, text: str, end: int | None = None) -> list[int]:
    """Ids of a reply: `end` or the first stop id behind it, unless the text ends with `...` (cut by the cap)."""
    ids: list[int] = chat.tokenizer.encode(text.removesuffix("..."), add_special_tokens=False)
    return ids if text.endswith("...") else [*ids, chat.stop_ids[0] if end is None else end]


def make_talk(script: Sequence[Told], tools: bool = False, guide: str | None = None) -> ArenaEnv:
    """The game for a script."""
    if Talk.id not in llm_arena.registry:  # not on import, for tests of the shelf list the registry when collected
        llm_arena.register(Talk.id, Talk)
    parts = [[list(pair) for pair in told] for told in script]
    return llm_arena.make(Talk.id, script=parts, tools=tools, guide=guide, retries=5)


def converse(
    chat: ChatFormat, script: Sequence[Told], replies: Sequence[Any], *, tools: bool = False, **options: Any
) -> tuple[Trace, Sent]:
    """Plays the script with replies (texts, or lists of ids) by an LLM agent with `options`.

    The game asks again after an empty reply, so more replies may be needed than the script has turns.
    """
    lines = [reply if isinstance(reply, list) else ids_of(chat, reply) for reply in replies]
    engine = FakeEngine(lines, policies=["p"])
    llm = importlib.import_module("llm_arena.agents.llm")
    agent = llm.LLMAgent(engine, "p", chat, llm.Settings(max_new_tokens=200, **options))
    with Runtime(engine=engine) as runtime:
        trace = llm_arena.play(make_talk(script, tools), agents=agent, seed=0, runtime=runtime)
    return trace, [(prompt, line) for (_, prompt, _), line in zip(engine.calls, lines, strict=False)]


def views_of(trace: Trace) -> list[list[Message]]:
    """What the speaker saw at each of its turns."""
    views: list[list[Message]] = []
    for turn in trace.turns:
        same = bool(views) and turn.view_epoch == trace.turns[turn.index - 1].view_epoch
        views.append([*(views[-1] if same else []), *turn.messages])
    return views


def text_of(chat: ChatFormat, ids: Sequence[int]) -> str:
    """The text of ids, special tokens too."""
    return str(chat.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def trained(sequence: TokenSequence) -> list[int]:
    """The trained ids of a sequence."""
    return [token for token, on in zip(sequence.token_ids, sequence.mask, strict=True) if on]


def check_every_sampled_id_is_trained_once(trace: Trace, sent: Sent) -> list[TokenSequence]:
    """Each turn's completion is in one sequence, at the end of exactly the ids that were sent for it."""
    found = sequences(trace)
    assert len(trace.turns) == len(sent)
    assert sum(sum(sequence.mask) for sequence in found) == sum(len(completion) for _, completion in sent)
    for index, (prompt, completion) in enumerate(sent):
        assert trace.full_ids(index) == (prompt, completion)
        if not completion:
            continue
        [sequence] = [sequence for sequence in found if index in sequence.turns]
        places = [place for place, turn in enumerate(sequence.turn_of) if turn == index]
        assert places == list(range(places[0], places[0] + len(completion)))
        assert sequence.token_ids[: places[-1] + 1] == prompt + completion
        assert [sequence.logprobs[place] for place in places] == trace.turns[index].logprobs
    for sequence in found:
        assert all(on or logprob == 0 for on, logprob in zip(sequence.mask, sequence.logprobs, strict=True))
    return found
