#!/usr/bin/env bash
# The main findings on a policy and a world held out from all tuning:
#   examples/confirm.sh SEED [FOLDER]
# pretrains a policy with this seed (into FOLDER, default bases), then trains on the world of the same seed: study
# confirm_SEED (delta 0, 5, 20, inf; the shipped teacher; GRPO with the tokens of RTI; five seeds each). About 45 minutes
# on one core. A rerun skips finished parts. For the verifier see examples/confirm_leaks.sh.
set -euo pipefail

seed="${1:?usage: examples/confirm.sh SEED [FOLDER]}"
bases="${2:-bases}"
python="${PYTHON:-python}"
train=("$python" -m rti_exp.train -m "env.seed=$seed")

[ -f "$bases/$seed/tiny/warmstart.json" ] || "$python" -m rti_exp.warmstart out="$bases/$seed" seed="$seed" models=[tiny]

policy="policy.path=$bases/$seed/tiny"
"${train[@]}" "study=confirm_$seed" "$policy" gate.delta=0,5,20,inf seed=0,1,2,3,4
budget="$bases/$seed/budget.txt" # the tokens of RTI at delta 5, read while the study has only these arms
[ -s "$budget" ] || "$python" -m rti_exp.compute "confirm_$seed" --arm gate.delta=5 | grep -o 'budget.tokens=[0-9]*' >"$budget"
"${train[@]}" "study=confirm_$seed" "$policy" experiment=teacher seed=0,1,2,3,4
"${train[@]}" "study=confirm_$seed" "$policy" experiment=compute_matched "$(cat "$budget")" seed=0,1,2,3,4
