"""Scripted episodes of werewolf-v0, which several test files share."""

from __future__ import annotations

from llm_arena.registry import env_class

W, S, D, V = "wolf", "seer", "doctor", "villager"
CARDS = (W, W, S, D, V, V, V)
"""Card of player_0, player_1, and so on, in the scripted episodes."""


def dealt(cards=CARDS, **kwargs):
    """Returns a reset game in which the seats hold `cards`, by a class whose deal is fixed."""

    class Fixed(env_class("werewolf-v0")):
        def deal(self, rng):
            super().deal(rng)
            self.cards = dict(zip(self.possible_agents, cards, strict=True))

    env = Fixed(**{"players": len(cards), "wolves": cards.count(W)} | kwargs)
    env.reset(seed=0)
    return env


def seat(number):
    return f"player_{number}"


def night(env, *, kill, check=None, protect=None, whispers=None):
    """Plays one night: the wolves agree on `kill`; villagers name the first they may."""
    for actor in list(env.pending):
        wish = {W: kill, S: check, D: protect}.get(env.cards[actor])
        legal = env.legal_actions(actor)
        reply = f"TARGET: {seat(wish)}" if wish is not None and f"TARGET: {seat(wish)}" in legal else legal[-1]
        if whispers and env.cards[actor] == W:
            reply = f"WHISPER: {whispers[actor]}\n{reply}"
        env.step(reply)


def text_of(env, number):
    return "\n".join(message["content"] for message in env.observe(seat(number))["messages"])
