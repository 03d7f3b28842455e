#!/usr/bin/env bash
# One run on several machines by ssh: each host plays one shard. A shard that fails is started again and resumes.
#
#     RUN=big-nip SPEC=specs/mine.yaml ./ssh-loop.sh host1 host2 host3
#
# FOLDER has the spec, its files and nip-run on each host. If the hosts share a disk, the last shard merges all shards. If
# they do not, set COPY=yes to copy the shards to this machine and merge them. API keys are not sent: each host must have
# them in its environment.
set -u

: "${RUN:?set RUN to an id for the run}"
: "${SPEC:?set SPEC to the path of the spec}"
[ $# -gt 0 ] || { echo "give at least one host" >&2; exit 2; }
FOLDER=${FOLDER:-$PWD}
COPY=${COPY:-no}
TRIES=${TRIES:-3}
SSH=${SSH:-ssh -o BatchMode=yes -o ServerAliveInterval=30}
shards=$#

play() { # HOST NUMBER
    local try code=1
    for ((try = 1; try <= TRIES; try++)); do
        # shellcheck disable=SC2086  # SSH is a command with options
        $SSH "$1" "cd '$FOLDER' && nip-run '$SPEC' --run-id '$RUN' --shard '$2/$shards' -q" </dev/null && return 0
        code=$?
        echo "shard $2/$shards on $1 ended with exit code $code" >&2
        case $code in 2 | 3 | 4) break ;; esac # an invalid spec, a used-up budget or a refused key: another try would fail, too
    done
    return "$code"
}

running=()
number=0
for host in "$@"; do
    number=$((number + 1))
    play "$host" "$number" &
    running+=("$!")
done
failed=0
for pid in "${running[@]}"; do wait "$pid" || failed=$?; done
[ "$failed" -eq 0 ] || { echo "some shards failed; run the same command again to resume them" >&2; exit "$failed"; }

if [ "$COPY" = yes ]; then
    number=0
    for host in "$@"; do
        number=$((number + 1))
        part="results/runs/$RUN/shards/$number-of-$shards"
        # shellcheck disable=SC2086
        $SSH "$host" "cd '$FOLDER' && tar cf - '$part'" </dev/null | tar xf - || exit 1
    done
fi
nip-run merge "$RUN"
