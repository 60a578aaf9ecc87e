"""Where a learner lives: what the setting `learner.devices` names."""

from __future__ import annotations

import pytest
import torch

from llm_arena.errors import UsageError
from llm_arena.training.loading import learner_device


@pytest.mark.parametrize(
    ("devices", "count", "expected"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"), ("0", 1, "cuda:0"), ("1", 2, "cuda:1")],
)
def test_a_device_is_found(devices: str, count: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert learner_device(devices) == torch.device(expected)


@pytest.mark.parametrize(
    ("devices", "count", "says"),
    [
        ("0,1", 2, "one process trains on one device"),
        ("2", 2, r"CUDA device \(0 to 1\); got '2'"),
        ("0", 0, "there is none here"),
        ("gpu", 1, "auto, cpu, or a CUDA device"),
        ("-1", 1, "auto, cpu, or a CUDA device"),
        ("", 1, "auto, cpu, or a CUDA device"),
    ],
)
def test_what_is_no_device_is_refused(devices: str, count: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UsageError, match=says):
        learner_device(devices)
