#!/usr/bin/env bash
# Copy this folder to the current one, make the claims, and pretrain the models: bash PATH/prepare.sh [SEED]
set -euo pipefail
seed=${1:-0} steps=${STEPS:-2000}    # STEPS: the maximum for one model
export OMP_NUM_THREADS=1             # one thread for each of the two processes
cp -r "$(dirname "$0")"/. .
python claims.py claims.jsonl --seed "$seed"

pretrain() { python pretrain.py "$1" "models/$2.pt" --seed "$seed" "${@:3}" > "$2.log"; } # ROLE NAME OPTION...
provers() {
    pretrain prover prover --protocols adp --steps $((steps < 1500 ? steps : 1500))
    pretrain prover broad_prover --start models/prover.pt --steps $((steps / 3))
}
provers & provers=$!
pretrain verifier verifier --protocols solo_verifier adp --until 0.75 --steps "$steps"
pretrain verifier broad_verifier --start models/verifier.pt --steps $((steps / 3))
wait $provers
