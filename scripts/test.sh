#!/usr/bin/env bash
# Run the tests. As root on Debian or Ubuntu, also install and start the Slurm cluster that some of them need, and
# unpack Nsight Systems; otherwise run them against what is there already, or say which ones were not run.
#   usage: scripts/test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."

if ! .venv/bin/aorta cluster status >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        trap '.venv/bin/aorta cluster down' EXIT
        .venv/bin/aorta cluster up --install
    else
        echo "test: no Slurm cluster is up and this user cannot install one: tests marked 'slurm' will be skipped" >&2
    fi
fi
if .venv/bin/aorta cluster status >/dev/null 2>&1; then
    export AORTA_REQUIRE_SLURM=1 # with a cluster there, a skipped Slurm test would hide a fault
fi
nsys=/opt/aorta-nsys/usr/bin/nsys
if ! command -v nsys >/dev/null; then
    if [ -x "$nsys" ] || { [ "$(id -u)" = 0 ] && scripts/install_nsys.sh; }; then
        export AORTA_NSYS=$nsys
    else
        echo "test: Nsight Systems is not installed and could not be unpacked: tests that need nsys will be skipped" >&2
    fi
fi
unset PYTHONDONTWRITEBYTECODE # hundreds of processes start, and each would compile all of aorta again
.venv/bin/python -m pytest "$@"
