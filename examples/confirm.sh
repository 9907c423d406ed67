#!/usr/bin/env bash
# The findings again, on a policy and a world that nothing was chosen on:
#   examples/confirm.sh SEED [FOLDER]
# pretrains a policy and a leakier one with this seed (into FOLDER, default bases), then trains on the world of the same
# seed: study confirm_SEED (delta 0, 5, 20, inf; the shipped teacher; GRPO with the tokens of RTI; five seeds each) and
# study confirm_SEED_leaks (RTI, no verifier, GRPO on two repeated tasks; three seeds). About an hour on one core.
# What is done is skipped when it is started again.
set -euo pipefail

seed="${1:?usage: examples/confirm.sh SEED [FOLDER]}"
bases="${2:-bases}"
python="${PYTHON:-python}"
train=("$python" -m rti_exp.train -m "env.seed=$seed")

[ -f "$bases/$seed/tiny/warmstart.json" ] || "$python" -m rti_exp.warmstart out="$bases/$seed" seed="$seed" models=[tiny]
[ -f "$bases/leaky_$seed/tiny/warmstart.json" ] || "$python" -m rti_exp.warmstart out="$bases/leaky_$seed" seed="$seed" models=[tiny] \
  training.steps=3600 training.documents=120000 \
  prior.right.tel_hard=0.005 prior.right.pay_hard=0.005 prior.right.ret=0.03 \
  prior.correct_clean=0.12 prior.correct_leaky=0.7 prior.correct_wordy=0.14 prior.correct_wrong=0.04 \
  prior.rollouts=0.42 prior.validator=0.14 prior.corrector=0.26 prior.verifier=0.18

policy="policy.path=$bases/$seed/tiny"
"${train[@]}" "study=confirm_$seed" "$policy" gate.delta=0,5,20,inf seed=0,1,2,3,4
budget="$bases/$seed/budget.txt" # what RTI at delta 5 spent, read while the study holds nothing else
[ -s "$budget" ] || "$python" -m rti_exp.compute "confirm_$seed" --arm gate.delta=5 | grep -o 'budget.tokens=[0-9]*' >"$budget"
"${train[@]}" "study=confirm_$seed" "$policy" experiment=teacher seed=0,1,2,3,4
"${train[@]}" "study=confirm_$seed" "$policy" experiment=compute_matched "$(cat "$budget")" seed=0,1,2,3,4
"${train[@]}" "study=confirm_${seed}_leaks" "policy.path=$bases/leaky_$seed/tiny" \
  'experiment=[leaks,rti],[leaks,no_verifier],[leaks,grpo]' seed=0,1,2
