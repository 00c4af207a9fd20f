#!/usr/bin/env bash
# Analyses every scenario and writes docs/BOTTLENECK_ANALYSIS.md. Usage: [base_results_dir, default results/profiling]
# Paths are relative to the project folder. Options: --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ -x .venv/bin/aorta ]] || make setup >&2
exec .venv/bin/aorta aggregate "$@"
