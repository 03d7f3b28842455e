#!/usr/bin/env bash
# Play, train and compare with the models of prepare.sh: bash run.sh [SEED]
# After an interruption, repeat the command: finished games are not played again.
set -euo pipefail
seed=${1:-0}
export OMP_NUM_THREADS=1
python server.py > server.log & trap 'kill $!' EXIT

play() { nip-run "$1.yaml" --run-id "$2" seed="$seed" "${@:3}"; } # SPEC RUN KEY=VALUE...

# The protocols, with the models that know all of them
for protocol in solo_verifier adp nip debate merlin_arthur; do play $protocol $protocol; done
nip-run compare adp nip debate merlin_arthur --baseline solo_verifier

# Three kinds of training: an adversarial prover, a verifier alone, both together
play adversary adversary
play verifier_only verifier-only
play expert_iteration both
play malt malt
for run in verifier-only both malt; do nip-run compare $run-t0 $run-t3; done

# The verifier of each iteration against the first prover, the current prover and the adversarial prover
for run in verifier-only both malt; do
    for iteration in i0 i1 i2 last; do
        verifier=(models.verifier.from_run=$run@$iteration models.verifier.model=null)
        play adp $run-$iteration-first "${verifier[@]}" models.prover.model=./models/prover.pt
        play adp $run-$iteration-adversary "${verifier[@]}" dataset.filter='label = 0' \
            models.prover.from_run=adversary@last models.prover.model=null
    done
    nip-run compare $run-i0-first $run-last-first
    nip-run compare $run-i0-adversary $run-last-adversary
done
nip-run sql @learning_curve
