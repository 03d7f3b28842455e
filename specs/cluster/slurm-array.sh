#!/usr/bin/env bash
# One run as a SLURM array: each task plays one shard, and the last one merges all shards into one run.
#
#     RUN=big-nip SPEC=specs/mine.yaml sbatch slurm-array.sh
#
# All nodes must share the disk. If a task is killed, preempted or out of time, requeue it or submit it again
# (sbatch --array=3 slurm-array.sh): it resumes its shard. If nodes see the files of other nodes late, merge the shards in
# a separate job, which changes nothing if they are already merged:
#
#     sbatch --dependency=afterok:JOB --wrap "nip-run merge big-nip"
#
#SBATCH --job-name=nip-run
#SBATCH --array=1-8
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u

: "${RUN:?set RUN to an id for the run, the same in all tasks}"
: "${SPEC:?set SPEC to the path of the spec}"
: "${SLURM_ARRAY_TASK_ID:?submit this script with sbatch, as an array}"
# Not SLURM_ARRAY_TASK_COUNT, which is 1 if a single task is submitted again.
SHARDS=${SHARDS:-8}

# If each task has its own server, start the server here and set its address, which may differ between shards:
#     vllm serve Qwen/Qwen3-8B --port "$((8000 + SLURM_ARRAY_TASK_ID))" &
#     set -- "models.local.base_url=http://127.0.0.1:$((8000 + SLURM_ARRAY_TASK_ID))/v1" "$@"

nip-run "$SPEC" --run-id "$RUN" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" "$@" &
child=$!
# SLURM sends SIGTERM two minutes before the time limit: calls in flight have 5 seconds to finish, and the shard ends with
# exit code 130.
trap 'kill -TERM "$child" 2>/dev/null' TERM
code=0
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do
    code=0
    wait "$child" || code=$?
done
if [ "$code" -eq 130 ] && command -v scontrol >/dev/null; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$code"
