#!/usr/bin/env bash
# Train on every visible GPU of this machine.
#   usage: scripts/launch_cuda.sh [config.yaml] [train.py arguments...]
#   without a GPU the script asks before it trains on the CPU; --cpu says yes
#   CUDA_VISIBLE_DEVICES=2,3 scripts/launch_cuda.sh config/default.yaml --override training.max_steps=50
set -euo pipefail
# shellcheck source=scripts/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch_common.sh"
launch "$@"
