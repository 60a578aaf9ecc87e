"""Makes and plays every game with the installed wheel, from an empty folder: `python -P wheel_check.py`.

Fails when the package was found in a checkout instead of site-packages, when the wheel brought more than one
import name, or when playing needs anything that only training needs.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

for name in ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "gguf"):
    sys.modules[name] = None  # type: ignore[assignment]  # an import of it now fails: a base install must be enough

import llm_arena  # noqa: E402 - after the lines that keep torch and its like out


def main() -> None:
    """Runs the checks and prints one line per game."""
    place = Path(llm_arena.__file__).resolve()
    assert "site-packages" in place.parts, f"llm_arena was imported from {place}, not from an installed wheel"

    files = importlib.metadata.files("llm-arena") or []
    tops = {file.parts[0] for file in files if file.parts[0] != ".." and not file.parts[0].endswith(".dist-info")}
    assert tops == {"llm_arena"}, f"the wheel brought these import names: {sorted(tops)}"
    print(f"wheel: {len(files)} files, one import name")

    ids = sorted(llm_arena.registry)
    assert ids, "no game is registered"
    for env_id in ids:
        env = llm_arena.make(env_id)
        trace = llm_arena.play(env, agents="random-legal", seed=0)
        assert not trace.void, trace.failure
        assert set(trace.returns) == set(env.possible_agents), trace.returns
        llm_arena.verify(trace)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "traces.jsonl"
            with llm_arena.TraceWriter(path) as writer:
                writer.write(trace)
            (again,) = llm_arena.read_traces(path)
            assert again.id == trace.id
        print(f"played {env_id}: {len(trace.turns)} turns, returns {trace.returns}")

    command = [str(Path(sys.executable).parent / "llm-arena"), "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(env_id in listed for env_id in ids), listed
    print("llm-arena list: all there")


if __name__ == "__main__":
    main()
