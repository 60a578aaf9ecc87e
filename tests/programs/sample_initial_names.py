"""Samples names from the untrained embedded model: how tests/data/initial_names.json was made.

    python tests/programs/sample_initial_names.py tests/data/initial_names.json

One name per topic of both lists, temperature 1, 24 new tokens, through the prompt that `naming-v0` shows. The file is
what the rubric was frozen against, so it is made once and kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

import llm_arena
from llm_arena.models import fetch
from llm_arena.problems.naming.topics import SPLITS

MODEL, SEED, MAX_NEW_TOKENS, ROWS = "smollm2-135m", 0, 24, 25


def main(target: Path) -> None:
    """Writes the names to `target`."""
    folder = fetch(MODEL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    topics = [topic for split in SPLITS.values() for topic in split]
    prompts = [
        tokenizer.apply_chat_template(ask(topic), tokenize=False, add_generation_prompt=True) for topic in topics
    ]
    torch.manual_seed(SEED)
    names = []
    for at in range(0, len(topics), ROWS):
        batch = tokenizer(prompts[at : at + ROWS], return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            rows = model.generate(
                **batch,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=MAX_NEW_TOKENS,
                eos_token_id=end,
            )
        for topic, row in zip(topics[at : at + ROWS], rows[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
            ids = row[: row.index(end)] if end in row else row
            text = tokenizer.decode(ids, skip_special_tokens=True)
            names.append({"topic": topic, "text": text, "finish": "stop" if end in row else "length"})
    made = {
        "model": MODEL,
        "command": "python tests/programs/sample_initial_names.py tests/data/initial_names.json",
        "seed": SEED,
        "temperature": 1.0,
        "max_new_tokens": MAX_NEW_TOKENS,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "names": names,
    }
    target.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def ask(topic: str) -> list[dict[str, str]]:
    """Returns the messages that a namer is shown."""
    env = llm_arena.make("naming-v0", namers=1, topic=topic)
    env.reset(seed=0)
    return env.observe("namer_0")["messages"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
