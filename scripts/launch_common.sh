# shellcheck shell=bash
# Sourced by launch_cuda.sh and launch_rocm.sh: start train.py once for every visible GPU of this machine.
#   NPROC=2 starts two processes; PYTHON=... chooses the interpreter. Without a GPU the script asks, or takes --cpu.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3

# The checkout's folder for what the user may type, quoted; empty in the checkout itself.
there=
[ "$PWD" = "$root" ] || printf -v there %q "$root"

say() { echo "$(basename "$0"): $*" >&2; }

# Sets `processes`. torch itself counts, so CUDA_VISIBLE_DEVICES and similar variables count as in torch.
count_processes() {
    local visible
    if ! visible=$("$python" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null); then
        say "$python has no torch; run 'make${there:+ -C $there} setup' or set PYTHON"
        exit 2
    fi
    processes=${NPROC:-$visible}
    if ! [[ $processes =~ ^[0-9]+$ ]]; then
        say "NPROC is '$processes', not a number: set NPROC=2, for example"
        exit 2
    fi
    if [ "$visible" -gt 0 ] && [ "$processes" -gt "$visible" ]; then
        say "NPROC is $processes, but $visible GPU(s) are visible: set NPROC=$visible or less"
        exit 2
    fi
    if [ "$visible" -eq 0 ]; then
        [ "$processes" -gt 0 ] || processes=1
        on_cpu=1
    fi
}

# Sets `arguments`: those given, without --cpu.
take_cpu_flag() {
    arguments=()
    while [ $# -gt 0 ]; do
        if [ "$1" = --cpu ]; then cpu=1; else arguments+=("$1"); fi
        shift
    done
}

# Without a GPU, a configuration that may be of GPU size is trained only if --cpu or the person says so.
agree_to_cpu() {
    [ "${on_cpu:-0}" = 1 ] || return 0
    say "no GPU is visible: $processes process(es) on the CPU"
    case $(basename "$config") in small.yaml | dcrnn.yaml) return 0 ;; esac
    [ "${cpu:-0}" = 0 ] || return 0
    say "$config may be too large for a CPU: one step of config/default.yaml takes seconds there"
    if [ -t 0 ]; then
        local answer
        read -r -p "train on the CPU? [y/N] " answer
        case $answer in y | Y | yes) return 0 ;; esac
    fi
    say "add --cpu to train on the CPU anyway, or give ${there:+$there/}config/small.yaml"
    exit 2
}

# The first argument is the configuration, unless it is a flag; everything else goes to train.py as it is.
# Sets `config` and `trainer`.
choose_trainer() {
    config=$root/config/default.yaml
    if [ $# -gt 0 ] && [[ $1 != -* ]]; then
        config=$1
        shift
    fi
    trainer=("$root/train.py" --config "$config" "$@")
}

launch() {
    take_cpu_flag "$@"
    count_processes
    choose_trainer "${arguments[@]}"
    agree_to_cpu
    exec "$python" -m torch.distributed.run --standalone --nproc_per_node "$processes" "${trainer[@]}"
}
