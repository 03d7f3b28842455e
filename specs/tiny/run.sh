#!/usr/bin/env bash
# Play, train and compare with the models of prepare.sh: bash run.sh [SEED]
# After an interruption, repeat the command: finished games are not played again.
set -euo pipefail
seed=${1:-0}
export OMP_NUM_THREADS=1
rm -f server.log    # of an earlier server, whose address would end the wait below
python server.py > server.log 2>&1 & trap 'kill $!' EXIT
until grep -qs http server.log; do    # it prints its address once it listens
    kill -0 $! 2> /dev/null || { echo "the server did not start:"; cat server.log; exit 1; }
    sleep 1
done

play() { nip-run "$1.yaml" --run-id "$2-$seed" seed="$seed" "${@:3}" >> run.log; }    # SPEC RUN KEY=VALUE...
compare() { nip-run compare "$@" --flips 0; }
title() { printf '\n# %s\n\n' "$*"; }

title The protocols, each with models that were pretrained for it, against the verifier alone
protocols=(adp nip debate merlin_arthur)
for protocol in solo_verifier "${protocols[@]}"; do play "$protocol" "$protocol"; done
compare "${protocols[@]/%/-$seed}" --baseline "solo_verifier-$seed"

title Four kinds of training, before and after three iterations
play adversary adversary
play verifier_only verifier-only
play expert_iteration both training.iterations=6
play malt malt
for run in adversary verifier-only both malt; do compare "$run-$seed-t0" "$run-$seed-t3"; done
title Training both, after three and six iterations
compare "both-$seed-t3" "both-$seed-t6"
title An adversarial prover against the verifier that was trained with its prover, before and after six iterations
play adversary adversary-both models.verifier.from_run="both-$seed@last" models.verifier.model=null training.iterations=6
compare "adversary-both-$seed-t0" "adversary-both-$seed-t6"

# The trained verifiers against the first prover and the adversarial prover, and with their own prover at temperature 0
for run in verifier-only both malt; do
    iterations=(i0 i1 i2 last)
    if [ $run = both ]; then iterations=(i0 i2 i4 last); fi
    for iteration in "${iterations[@]}"; do
        verifier=(models.verifier.from_run="$run-$seed@$iteration" models.verifier.model=null)
        play adp "$run-$iteration-first" "${verifier[@]}" models.prover.model="./models/$seed/start/prover.pt"
        play adp "$run-$iteration-adversary" "${verifier[@]}" dataset.filter='label = 0' \
            models.prover.from_run="adversary-$seed@last" models.prover.model=null
        play adp "$run-$iteration-cold" "${verifier[@]}" models.{verifier,prover}.temperature=0 \
            models.prover.from_run="$run-$seed@$iteration" models.prover.model=null
    done
    title "The verifier of $run, against the first prover, the adversarial prover, and its own prover at temperature 0"
    for prover in first adversary cold; do compare "$run-i0-$prover-$seed" "$run-last-$prover-$seed"; done
done
title All metrics
nip-run sql "PIVOT (FROM metrics SELECT run_id, metric, value WHERE agent IS NULL AND run_id LIKE '%-$seed%'
    AND metric IN ('accuracy', 'completeness', 'soundness_error', 'ece_corrected_logprob'))
    ON metric USING first(value) ORDER BY run_id"
title The proofs of wrong claims, by kind
python proofs.py both-"$seed"-t{0,3,6} adversary-both-"$seed"-t{0,6}
