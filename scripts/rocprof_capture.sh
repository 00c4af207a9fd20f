#!/usr/bin/env bash
# Train with every process under rocprofv3; traces go to rocprof_traces/run_<timestamp>/, one name per rank.
#   usage: scripts/rocprof_capture.sh [config.yaml] [train.py arguments...]
#   ROCPROF_OUTPUT_DIR=DIR   writes traces to another folder
#   ROCPROF_ARGS="..."       replaces the default trace options
set -euo pipefail
# shellcheck source=scripts/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch_common.sh"
output=${ROCPROF_OUTPUT_DIR:-rocprof_traces/run_$(date +%Y%m%d_%H%M%S)}
mapfile -d '' -t prefix < <("$python" -m aorta.launch.rocprof_capture "$output" "${ROCPROF_ARGS:-}" || echo -n failed)
if [ "${prefix[-1]:-failed}" = failed ]; then
    exit 2
fi
take_cpu_flag "$@"
count_processes
choose_trainer "${arguments[@]}"
agree_to_cpu
say "traces: $output"
export AORTA_PROFILER=rocprofv3
exec "$python" -m torch.distributed.run --standalone --nproc_per_node "$processes" --no-python \
    "${prefix[@]}" "$python" "${trainer[@]}"
