#!/bin/bash
# Makes docs/examples again: two real runs of one program on this machine, one with a slow disk on rank 1.
# The repository has neither vector figures nor run directories, so links to them are removed.
# A run in results/examples is not repeated: its report is made again. Move the run away for a new one.
set -euo pipefail
cd "$(dirname "$0")/.."

example() {
    local name=$1
    shift
    # Only what the repository has is removed.
    git ls-files -z "docs/examples/$name" | xargs -0 --no-run-if-empty rm -f --
    if [ -e "results/examples/$name" ]; then
        .venv/bin/aorta aggregate "results/examples/$name" --docs "docs/examples/$name"
    else
        .venv/bin/aorta profile --nodes 1 --procs-per-node 2 \
            --results "results/examples/$name" --docs "docs/examples/$name" -- docs/examples/loader/train.py "$@"
    fi
    rm "docs/examples/$name/bottleneck_analysis/"*.svg
    sed -E -i 's# · \[text report of [^]]*\]\([^)]*\)##; s# ?\(\[as SVG\]\([^)]*\)\)##; s#\[([^]]*)\]\(\.\./[^)]*\)#\1#g' \
        "docs/examples/$name/BOTTLENECK_ANALYSIS.md"
    # Commands name the run by its place in the checkout, wherever that is.
    sed -i "s#$PWD/##g" "docs/examples/$name/BOTTLENECK_ANALYSIS".*
}

example clean
example faulty --slow-disk
