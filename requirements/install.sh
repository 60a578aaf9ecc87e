#!/bin/sh
# Installs a lock into a virtual environment: sh requirements/install.sh PYTHON_OF_THE_ENVIRONMENT [auto | cpu | cuda]
# Prints the device that is meant, and does nothing: sh requirements/install.sh --device [auto | cpu | cuda]
#
# `cuda` is requirements/cuda.txt, `cpu` is requirements/cpu.txt, `auto` is `cuda` where there is an NVIDIA GPU that the
# lock is for. Nothing comes in that the lock doesn't name.
#
# On Linux the plain registry serves torch with CUDA in several GB, so for `cpu` torch comes first and by itself: where
# plain resolution doesn't give a CPU build already (version "+cpu", from pip's own settings, such as find-links),
# PyTorch's index of CPU wheels is added for this one package. If that index can't be reached, pip goes on without it
# after one retry, and we get the CUDA build, which runs on the CPU too but needs its libraries beside it. Set
# TORCH_CPU_INDEX to another address to use a mirror.
set -eu

python=$1
asked=${2:-auto}
index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
here=$(dirname "$0")
system="$(uname -s) $(uname -m)"
export PIP_DISABLE_PIP_VERSION_CHECK=1

found_gpu() { # Containers may have the devices without the program.
    nvidia-smi -L 2>/dev/null | grep -q '^GPU' || [ -e /dev/nvidia0 ] || [ -d /proc/driver/nvidia/gpus ]
}

case "$asked" in
auto) if [ "$system" = "Linux x86_64" ] && found_gpu; then device=cuda; else device=cpu; fi ;;
cpu | cuda) device=$asked ;;
*) echo "DEVICE must be auto, cpu or cuda; got $asked" >&2 && exit 2 ;;
esac
if [ "$device" = cuda ] && [ "$system" != "Linux x86_64" ]; then
    echo "DEVICE=cuda is for Linux on x86_64, and this is $system; use DEVICE=cpu" >&2
    exit 2
fi
if [ "$python" = --device ]; then
    echo "$device"
    exit
fi

case "$device" in
cuda) echo "installing for NVIDIA GPUs; for the CPU alone: make venv DEVICE=cpu" ;;
cpu) echo "installing for the CPU; for NVIDIA GPUs: make venv DEVICE=cuda" ;;
esac

lock=$here/$device.txt
wanted=$(sed -n 's/^torch==//p' "$lock")

installed() {
    "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || echo none
}

resolved() {
    "$python" -m pip install --dry-run --quiet --no-deps --report - "torch==$wanted" 2>/dev/null |
        "$python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' 2>/dev/null ||
        echo none
}

case "$device $(installed)" in
cuda*) ;;
"cpu $wanted" | "cpu $wanted"+*) ;;
*)
    echo "torch $wanted: looking for a CPU build"
    extra=
    case "$system $(resolved)" in
    Linux*+cpu) ;;
    Linux*) extra="--extra-index-url $index --timeout 30 --retries 1" ;;
    esac
    # shellcheck disable=SC2086 # $extra is a list of options
    "$python" -m pip install --no-deps $extra "torch==$wanted"
    ;;
esac

echo "the packages of $lock"
"$python" -m pip install --no-deps -r "$lock"

case "$device $system $(installed)" in
*+* | cuda* | *Darwin*) ;;
*Linux*)
    # A build without "+cpu" may want libraries of its own; with all of them present this installs nothing.
    echo "note: this build of torch is not marked as a CPU build; its libraries can take several GB"
    "$python" -m pip install "torch==$wanted"
    ;;
esac
