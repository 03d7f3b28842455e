#!/usr/bin/env bash
# One run on several machines by ssh: each host plays one shard; what fails is started again, and goes on.
#
#     RUN=big-nip SPEC=specs/mine.yaml ./ssh-loop.sh host1 host2 host3
#
# The spec, its files and nip-run stand on each host in FOLDER. Without a shared disk, COPY=yes brings the parts here,
# where they are merged; with one the last shard merges them, and the merge here says so. Keys are not sent: each host
# has them in its environment.
set -u

: "${RUN:?the id of the run}"
: "${SPEC:?the spec}"
[ $# -gt 0 ] || { echo "which hosts?" >&2; exit 2; }
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
        case $code in 2 | 3 | 4) break ;; esac # a wrong spec, no budget, no key: the same again
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
[ "$failed" -eq 0 ] || { echo "not all shards ended; run the same command again" >&2; exit "$failed"; }

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
