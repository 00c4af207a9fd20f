#!/usr/bin/env bash
# Submits the profiling jobs with this site's settings. Options: --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ -x .venv/bin/aorta ]] || make setup >&2
if [[ -f scripts/profiling_config.sh ]]; then
    # shellcheck source=/dev/null
    source scripts/profiling_config.sh
fi
exec .venv/bin/aorta submit "$@"
