#!/usr/bin/env bash
# Copy this folder to the current one, make the claims, and pretrain the models: bash PATH/prepare.sh [SEED]
set -euo pipefail
seed=${1:-0} steps=${STEPS:-2000}
export OMP_NUM_THREADS=1    # one thread for each of the two processes
cp -r "$(dirname "$0")"/. .
python claims.py claims.jsonl --seed "$seed"
python pretrain.py prover models/prover.pt --seed "$seed" --steps $((steps < 400 ? steps : 400)) > prover.log & prover=$!
# A weak verifier for training, which knows only two protocols; then one that knows all
python pretrain.py verifier models/verifier.pt --seed "$seed" --steps "$steps" --protocols solo_verifier adp --until 0.8
python pretrain.py verifier models/broad_verifier.pt --start models/verifier.pt --seed "$seed" --steps $((steps / 3))
wait $prover
