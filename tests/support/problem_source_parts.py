"""Draws from sources of problems, with Hugging Face's libraries offline."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path_factory):
    """Hugging Face's libraries stay offline, and write nothing into the user's cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants
    from datasets import config

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))


def rng(seed=0):
    return np.random.default_rng(seed)


def drawn(source, number=40):
    return {(question.text, question.answer) for question in (source.draw(rng(seed)) for seed in range(number))}
