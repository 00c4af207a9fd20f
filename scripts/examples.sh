#!/bin/bash
# Makes docs/examples anew: two real runs on this machine, one with a slow loader on rank 1 and one without.
# Figures as vectors and run directories stay out of the repository; so do the links to them.
set -euo pipefail
cd "$(dirname "$0")/.."

example() {
    local name=$1
    shift
    if [ -e "results/examples/$name" ]; then
        echo "results/examples/$name exists: move it away first" >&2
        exit 2
    fi
    # Only what the repository has is removed.
    git ls-files -z "docs/examples/$name" | xargs -0 --no-run-if-empty rm -f --
    .venv/bin/aorta profile --config config/validation.yaml --nodes 2 \
        --results "results/examples/$name" --docs "docs/examples/$name" "$@"
    rm "docs/examples/$name/bottleneck_analysis/"*.svg
    sed -E -i 's# ?\(\[as SVG\]\([^)]*\)\)##; s#\[([^]]*)\]\(\.\./[^)]*\)#\1#g' \
        "docs/examples/$name/BOTTLENECK_ANALYSIS.md"
    # Commands name the run by its place in the checkout, wherever that is.
    sed -i "s#$PWD/##g" "docs/examples/$name/BOTTLENECK_ANALYSIS".*
}

example clean
example faulty --override 'faults.ranks=[1]' faults.loader_delay_ms=40
