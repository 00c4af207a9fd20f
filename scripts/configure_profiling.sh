#!/usr/bin/env bash
# Asks for account, partition and GPUs per node, checks them, writes scripts/profiling_config.sh. Options: --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ -x .venv/bin/aorta ]] || make setup >&2
exec .venv/bin/aorta configure "$@"
