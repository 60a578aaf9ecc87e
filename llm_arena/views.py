"""What each seat has seen: its view, a list of chat messages, and how often it was replaced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

from llm_arena.compaction import REQUEST, Unit, outgrown, summary_characters
from llm_arena.types import Json, Message, Reply


class Views(ABC):
    """The part of an env's books that keeps the views."""

    budget: int | None
    budget_unit: Unit
    pending: list[str]
    compacting: dict[str, int]
    "Seats that are asked for a summary, with the index of the request in their view."
    _history: list[Json]
    _phase_open: bool

    @abstractmethod
    def _known(self, seat: str) -> None:
        """Raises an `EnvContractError` if there is no such seat."""

    @abstractmethod
    def _refuse_mid_phase(self, what: str, seat: str) -> None:
        """Raises an `EnvContractError` if the seat has yet to answer in a simultaneous phase."""

    def _open_views(self, seats: Iterable[str], system: str) -> None:
        """Gives every seat a view of its own with the system text alone."""
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self._views = {seat: copy_messages(opening) for seat in seats}
        self._epochs = dict.fromkeys(self._views, 0)
        self._openings: dict[str, int] = {}
        self._counted: dict[str, tuple[int, int]] = {}
        self.compacting = {}

    def tell(self, seats: str | Iterable[str], text: str, *, role: Literal["system", "user", "tool"] = "user") -> None:
        """Appends a message to the views of `seats`.

        Raises:
            EnvContractError: a seat is unknown, or is in a simultaneous phase that is not over (it would learn
                something before it answers).
        """
        for seat in (seats,) if isinstance(seats, str) else seats:
            if seat not in self._views:
                self._known(seat)
            if self._phase_open:
                self._refuse_mid_phase("tell", seat)
            self._views[seat].append({"role": role, "content": text})

    def replace_view(self, seat: str, messages: list[Message]) -> None:
        """Replaces a seat's whole view (compaction); its next turn begins a new sequence in the same trace.

        Raises:
            EnvContractError: as for `tell`.
        """
        self._known(seat)
        self._refuse_mid_phase("replace_view", seat)
        self._openings.pop(seat, None)
        self._replace(seat, copy_messages(messages))

    def view_epoch(self, seat: str) -> int:
        """Returns how often the seat's view has been replaced."""
        return self._epochs[seat]

    def _count(self, seat: str, reply: Reply) -> None:
        """Notes where the seat's opening ends, and how large its context is with this reply."""
        view = self._views[seat]
        self._openings.setdefault(seat, len(view) - 1)
        if self.budget_unit == "tokens" and reply.context_tokens is not None:
            self._counted[seat] = (reply.context_tokens, len(view))
            self._history[-1].append(reply.context_tokens)

    def _ask_for_summaries(self) -> None:
        """Asks those of `pending` for a summary whose views have outgrown the budget."""
        assert self.budget is not None  # the caller asked
        for seat in self.pending:
            view, opening = self._views[seat], self._openings.get(seat)
            # without a reply of its own after the opening there is nothing to leave out
            if opening is None or not any(message["role"] == "assistant" for message in view[opening:]):
                continue
            if outgrown(view, self.budget, self.budget_unit, self._counted.get(seat)):
                self.compacting[seat] = len(view)
                view.append({"role": "user", "content": REQUEST})

    def _cut(self, summary: str) -> str:
        """Returns a summary that leaves half of the budget."""
        assert self.budget is not None  # there would be no summary
        longest = summary_characters(self.budget, self.budget_unit)
        return summary if len(summary) <= longest else summary[:longest] + " ... (cut)"

    def _replace(self, seat: str, messages: list[Message]) -> None:
        self._views[seat] = messages
        self._counted.pop(seat, None)
        self._epochs[seat] += 1


def _copy(message: Message) -> Message:
    """Returns a copy that shares nothing that can be changed."""
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": content}
    return {"role": message["role"], "content": [part.copy() for part in content]}


def copy_messages(messages: Iterable[Message]) -> list[Message]:
    """Returns copies that share nothing that can be changed."""
    return [message.copy() if type(message["content"]) is str else _copy(message) for message in messages]
