#!/usr/bin/env bash
# One run as a SLURM array: each task plays one shard, and the last that ends makes the one run of them.
#
#     RUN=big-nip SPEC=specs/mine.yaml sbatch slurm-array.sh
#
# The disk is shared by all nodes. A task that is killed, preempted or out of time is requeued or submitted again
# (sbatch --array=3 slurm-array.sh), and goes on where it stopped. Where the nodes see each other's files late, merge by
# a job of its own, which says so where it was done already:
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

: "${RUN:?the id of the run, the same in all tasks}"
: "${SPEC:?the spec}"
: "${SLURM_ARRAY_TASK_ID:?to be submitted by sbatch, as an array}"
# Not SLURM_ARRAY_TASK_COUNT, which is 1 where one task is submitted again.
SHARDS=${SHARDS:-8}

# Where each task has a server of its own, start it here, and say its address, in which shards may differ:
#     vllm serve Qwen/Qwen3-8B --port "$((8000 + SLURM_ARRAY_TASK_ID))" &
#     set -- "models.local.base_url=http://127.0.0.1:$((8000 + SLURM_ARRAY_TASK_ID))/v1" "$@"

nip-run "$SPEC" --run-id "$RUN" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" "$@" &
child=$!
# SIGTERM comes two minutes before the time is up: calls in flight come in, and the shard ends with exit code 130.
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
