#!/usr/bin/env bash
# Train on every visible AMD GPU of this machine.
#   usage: scripts/launch_rocm.sh [config.yaml] [train.py arguments...]
#   HIP_VISIBLE_DEVICES=0,1 scripts/launch_rocm.sh config/default.yaml --enable-rocm-metrics
# RCCL_* and NCCL_* variables of the environment reach every process; distributed.env in the configuration
# keeps them with the run.
set -euo pipefail
# shellcheck source=scripts/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch_common.sh"
if ! "$python" -c 'import sys, torch; sys.exit(torch.version.hip is None)' 2>/dev/null; then
    say "this torch is not built for ROCm; training goes on with the devices that it has"
fi
launch "$@"
