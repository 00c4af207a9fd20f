#!/bin/bash
# EpilogSlurmctld of a site: one line about each job that aorta ran, in its AdminComment. In slurm.conf:
#   EpilogSlurmctld=/opt/aorta/scripts/slurm_epilog.sh
# The job's own user makes the line. Only its plain characters reach Slurm. Other jobs are left alone.
# slurmctld hands on neither PATH nor SLURM_CONF; docs/centres.md says what that asks of a site.
set -u
export PATH="$PATH:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" # slurmctld sets none: bash has one, its children do not
root=$(dirname "$(dirname "$(readlink -f "$0")")")
for aorta in ${AORTA:+"$AORTA"} "$root/bin/aorta" "$root/.venv/bin/aorta"; do
    [ ! -x "$aorta" ] || break
done
job=${SLURM_JOB_ID:?is set by slurmctld}
user=${SLURM_JOB_USER:?is set by slurmctld}

give_up() {
    logger -t aorta-epilog -- "job $job: $1" 2>/dev/null
    exit 0
}

shown=$(scontrol --oneliner show job "$job" 2>&1) || give_up "scontrol: ${shown:0:200}"
output=$(sed -n 's/.* StdOut=\([^ ]*\).*/\1/p' <<<"$shown")
case $output in
    */profile_*) ;;
    *) exit 0 ;;
esac
[ -x "$aorta" ] || give_up "$aorta is not there; set AORTA"
case $(id -un) in
    "$user") as_user=() ;;
    root) as_user=(runuser -u "$user" --) ;;
    *) as_user=(sudo -n -u "$user" --) ;;
esac
# The user could make that program print without end, or hold it back. So the output has a limit of bytes and
# of time, and nothing waits for the program's end.
cd /
exec 3< <(timeout --kill-after=10 120 "${as_user[@]}" "$aorta" staff line "$job" --analyze \
    --results "$(dirname "$output")" 2>/dev/null </dev/null)
line=$(timeout --kill-after=10 140 head -c 2000 <&3 | head -n 1 | tr -cd '[:alnum:] .:;%=_()/+-' | cut -c 1-200)
[ -n "$line" ] || give_up "no line; as user $user, try: $aorta staff line $job --analyze --results $(dirname "$output")"
# scontrol changes no job that has ended. sacctmgr writes the value in small letters, which sbatch takes as well.
said=$(sacctmgr --immediate --quiet modify job where "jobid=$job" set "AdminComment=$line" 2>&1 >/dev/null) ||
    give_up "sacctmgr: ${said:0:200}"
