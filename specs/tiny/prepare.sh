#!/usr/bin/env bash
# Copy the example to this folder, make the claims, and pretrain the models of a seed: bash PATH/prepare.sh [SEED]
# After an interruption, repeat the command: finished models are not trained again.
set -euo pipefail
seed=${1:-0} steps=${STEPS:-2000}    # STEPS: the maximum for one model
export OMP_NUM_THREADS=1             # one thread for each of the two processes
[ -e claims.py ] || cp -r "$(dirname "$0")"/{*.py,*.sh,*.yaml,README.md,prompts} .
[ -e claims.jsonl ] || python claims.py claims.jsonl

pretrain() { # ROLE PROTOCOL STEPS FOLDER OPTION...
    local file=models/$seed/$4/$1
    [ ! -e "$file.pt" ] || return 0
    mkdir -p "$(dirname "$file")"
    echo "pretraining $file.pt"
    python pretrain.py "$1" "$file.pt" --protocols "$2" --steps $(($3 < steps ? $3 : steps)) --seed "$seed" "${@:5}" > "$file.log"
}
provers() {
    pretrain prover adp 1500 start
    mkdir -p "models/$seed/adp" && cp "models/$seed/start/prover.pt" "models/$seed/adp/prover.pt"
    while read -r protocol count; do
        pretrain prover "$protocol" "$count" "$protocol" --start "models/$seed/start/prover.pt"
    done <<< $'nip 1500\ndebate 1000\nmerlin_arthur 1000'
}
provers & provers=$!
pretrain verifier adp 2000 start --until 0.75
while read -r protocol count; do
    pretrain verifier "$protocol" "$count" "$protocol" --start "models/$seed/start/verifier.pt"
done <<< $'solo_verifier 600\nadp 600\nnip 1200\ndebate 600\nmerlin_arthur 600'
wait $provers
