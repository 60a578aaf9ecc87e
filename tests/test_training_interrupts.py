"""What is kept of a run that something else than an error of the library ends, and what a resumed run may change."""

from __future__ import annotations

import os
import resource
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from llm_arena.errors import TrainingError
from llm_arena.trace_file import NotWritten, TraceWriter, read_traces
from llm_arena.training import checkpoint, learner, loop
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.run_folder import RunFolder
from llm_arena.training.signals import held
from llm_arena.types import Trace
from train_parts import tiny


def saved(run_dir: Path) -> int | None:
    found = checkpoint.newest(run_dir / "checkpoints")
    return None if found is None else found.step


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("epochs", [1, 2])
def test_what_breaks_off_the_learning_loses_no_finished_step(
    error: type[BaseException], epochs: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Learner.accumulate, 0

    def breaks(self: Learner, *args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == 3 * epochs:  # in the last pass of the third step
            raise error("broken off")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Learner, "accumulate", breaks)
    config = tiny().config(str(tiny_model), str(tmp_path), checkpoint_every=100, epochs=epochs, loss="ppo_clip")
    with pytest.raises(error):
        train(config, progress=False)
    assert saved(tmp_path) == 2
    monkeypatch.undo()
    assert train(config, progress=False).steps == config.num_steps


def test_a_tracker_that_fails_loses_no_finished_step(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny().config(str(tiny_model), str(tmp_path), checkpoint_every=100)

    def log(row: dict[str, float]) -> None:
        if row["step"] == 2:
            raise ConnectionError("no route to host")

    monkeypatch.setattr(loop, "tracker", lambda config, folder: nullcontext(log))
    with pytest.raises(ConnectionError):
        train(config, progress=False)
    assert saved(tmp_path) == 2


def test_a_step_whose_traces_the_disk_refuses_is_played_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the second trace of the third step."""
    config = tiny().config(str(tiny_model), str(tmp_path / "broken"), checkpoint_every=100)
    whole = train(tiny().config(str(tiny_model), str(tmp_path / "whole"), checkpoint_every=100), progress=False)
    traces = [trace.id for trace in read_traces(whole.run_dir / "traces.jsonl")]
    refused = traces[2 * len(traces) // config.num_steps + 1]
    real = TraceWriter.write

    def write(self: TraceWriter, trace: Trace) -> None:
        if trace.id == refused:
            raise NotWritten("No space left on device", trace)
        real(self, trace)

    monkeypatch.setattr(TraceWriter, "write", write)
    with pytest.raises(NotWritten):
        train(config, progress=False)
    assert saved(tmp_path / "broken") == 2
    monkeypatch.undo()
    train(config, progress=False)
    assert [trace.id for trace in read_traces(tmp_path / "broken" / "traces.jsonl")] == traces


def test_a_full_disk_ends_a_log_with_a_message_and_its_last_whole_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the row after the first fits in part."""
    folder = RunFolder(tmp_path, {})
    folder.log({"step": 1})
    size = folder.sizes()["metrics.jsonl"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, before[1]))
    try:
        with pytest.raises(TrainingError, match="make room and give the same command again"):
            folder.log({"step": 2})
        assert folder.sizes()["metrics.jsonl"] == size < (tmp_path / "metrics.jsonl").stat().st_size
        folder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_settings_of_memory_and_checks_may_change_in_a_resumed_run(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(row: dict[str, float], learners: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny().config(str(tiny_model), str(tmp_path)), progress=False, on_step=stop)
    changed: list[object] = []
    real = learner.recompute_layers
    monkeypatch.setattr(learner, "recompute_layers", lambda model: (changed.append(model), real(model)))
    smaller = {"recompute": True, "token_budget": 64, "max_row_tokens": 64, "max_open_episodes": 3, "probe_every": 1}
    result = train(tiny().config(str(tiny_model), str(tmp_path), **smaller), progress=False)
    assert result.steps == 6 and len(changed) == 1


def test_the_first_signal_waits_and_the_second_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt), held():
        os.kill(os.getpid(), signal.SIGINT)
        done.append(1)
    assert done == [1] and "after this step" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt), held():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append(2)
    assert done == [1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_threads_hold_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)

    def inside() -> None:
        with held():
            assert signal.getsignal(signal.SIGINT) is before

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
