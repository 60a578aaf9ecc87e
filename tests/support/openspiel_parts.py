"""Plays a game of the shelf and OpenSpiel's version of it side by side."""

import numpy as np
import pyspiel


def plays_alike(env, name, numbers, seed, cards=()):
    """Asserts that `env` and OpenSpiel's game `name` agree on a random line: who acts, what is legal, what is paid.

    Args:
        env: a two-player game of the shelf.
        name: OpenSpiel's name of the game.
        numbers: OpenSpiel's action by ours.
        seed: of the deal and of the line.
        cards: by chance node, a function from the env to OpenSpiel's outcomes, any of which stands for the env's deal.
    """
    state, rng = pyspiel.load_game(name).new_initial_state(), np.random.default_rng(seed)
    env.reset(seed=seed)
    dealt = iter(cards)
    while True:
        while state.is_chance_node():
            wanted = next(dealt)(env)
            state.apply_action(next(outcome for outcome in state.legal_actions() if outcome in wanted))
        assert env.over == state.is_terminal()
        if env.over:
            break
        seat = env.agent_selection
        assert env.possible_agents.index(seat) == state.current_player()
        legal = env.legal_actions(seat)
        assert sorted(numbers[action] for action in legal) == state.legal_actions()
        action = legal[int(rng.integers(len(legal)))]
        env.step(action)
        state.apply_action(numbers[action])
    assert list(env.returns.values()) == state.returns()
