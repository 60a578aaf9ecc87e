"""A case of doctor-patient-v0 and episodes about it, which several test files share."""

from __future__ import annotations

import json

import pytest

import llm_arena

CASE = {
    "condition": "pneumonia",
    "age": 34,
    "sex": "female",
    "complaint": "cough",
    "symptoms": ["cough", "fever", "sputum"],
    "history": ["smoking"],
    "findings": {"chest x-ray": "consolidation"},
}
RIGHT = "DIAGNOSIS: 1. pneumonia"


@pytest.fixture
def game(tmp_path):
    """Returns a function that makes a reset game about `CASE`, or about other cases."""

    def make(*cases, **kwargs):
        path = tmp_path / "cases.jsonl"
        path.write_text("\n".join(map(json.dumps, cases or [CASE])), "utf-8")
        env = llm_arena.make("doctor-patient-v0", cases=str(path), **kwargs)
        env.reset(seed=0)
        return env

    return make


@pytest.fixture
def played(game):
    def play(*replies, **kwargs):
        env = game(**kwargs)
        for reply in replies:
            assert not env.over
            env.step(reply)
        return env

    return play


def heard(env, seat="doctor_0"):
    return env.observe(seat)["messages"][-1]["content"]
