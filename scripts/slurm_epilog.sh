#!/bin/bash
# EpilogSlurmctld of a site: one line about each job that aorta ran, in its AdminComment. In slurm.conf:
#   EpilogSlurmctld=/opt/aorta/scripts/slurm_epilog.sh
# The line is made as the job's own user. Nothing of it but plain characters reaches Slurm. Other jobs are left alone.
set -u
aorta=${AORTA:-$(dirname "$(dirname "$(readlink -f "$0")")")/.venv/bin/aorta}
job=${SLURM_JOB_ID:?is set by slurmctld}
user=${SLURM_JOB_USER:?is set by slurmctld}
output=$(scontrol --oneliner show job "$job" | sed -n 's/.* StdOut=\([^ ]*\).*/\1/p')
case $output in
    */profile_*) ;;
    *) exit 0 ;;
esac
as_user=(runuser -u "$user" --)
[ "$(id -un)" != "$user" ] || as_user=()
# The user could make that program print without end, or hold it back: both have a limit here.
line=$(cd / && timeout --kill-after=10 120 "${as_user[@]}" "$aorta" staff line "$job" --analyze --results "$(dirname "$output")" 2>/dev/null </dev/null |
    timeout --kill-after=10 140 head -c 2000 | head -n 1 | tr -cd '[:alnum:] .:;%=_()/+-' | cut -c 1-200)
# scontrol changes no job that has ended. sacctmgr writes the value in small letters, which sbatch takes as well.
[ -z "$line" ] || sacctmgr --immediate --quiet modify job where "jobid=$job" set "AdminComment=$line" >/dev/null
