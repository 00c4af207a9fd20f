#!/usr/bin/env bash
# Fetch every wheel that aorta needs into a folder, for machines without internet. Run it where there is internet, with
# the Python version and the platform of the cluster.
#   usage: scripts/wheelhouse.sh [folder, default wheelhouse] [extras, default none; such as train]
# There: python3 -m venv .venv && .venv/bin/pip install --no-index --find-links wheelhouse 'aorta[train]'
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-wheelhouse}
extras=${2:-}
python=${PYTHON:-python3}
mkdir -p "$folder"
what=.${extras:+[$extras]}
"$python" -m pip wheel --disable-pip-version-check --quiet -c constraints.txt --wheel-dir "$folder" "$what"
printf 'wheelhouse: %s wheels, %s, in %s\n' "$(find "$folder" -name '*.whl' | wc -l)" "$(du -sh "$folder" | cut -f1)" "$folder"
