#!/bin/sh
# Installs requirements/cpu.txt into a virtual environment: sh requirements/install.sh PYTHON_OF_THE_ENVIRONMENT
#
# torch comes first and by itself. On Linux the plain registry serves a CUDA build of several GB, so the CPU build is
# preferred: where plain resolution doesn't give one already (version "+cpu", from pip's own settings, such as
# find-links), PyTorch's index of CPU wheels is added for this one package. If that index can't be reached, pip goes on
# without it after one retry, and we get the CUDA build, which runs on the CPU too but needs its libraries beside it.
# Set TORCH_CPU_INDEX to another address to use a mirror.
set -eu

python=$1
lock=$(dirname "$0")/cpu.txt
index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
wanted=$(sed -n 's/^torch==//p' "$lock")
export PIP_DISABLE_PIP_VERSION_CHECK=1

installed() {
    "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || echo none
}

resolved() {
    "$python" -m pip install --dry-run --quiet --no-deps --report - "torch==$wanted" 2>/dev/null |
        "$python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' 2>/dev/null ||
        echo none
}

case "$(installed)" in
"$wanted" | "$wanted"+*) ;;
*)
    echo "torch $wanted: looking for a CPU build"
    extra=
    if [ "$(uname -s)" = Linux ]; then
        case "$(resolved)" in
        *+cpu) ;;
        *) extra="--extra-index-url $index --timeout 30 --retries 1" ;;
        esac
    fi
    # shellcheck disable=SC2086 # $extra is a list of options
    "$python" -m pip install --no-deps $extra "torch==$wanted"
    ;;
esac

echo "the other packages of $lock"
"$python" -m pip install --no-deps -r "$lock"

case "$(uname -s) $(uname -m) $(installed)" in
*+* | Darwin*) ;;
Linux*)
    # A build without "+cpu" may want libraries of its own; with all of them present this installs nothing.
    echo "note: this build of torch is not marked as a CPU build; its libraries can take several GB"
    "$python" -m pip install "torch==$wanted"
    ;;
esac
