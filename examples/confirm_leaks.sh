#!/usr/bin/env bash
# The effect of training without a verifier, on a policy and a world held out from all tuning:
#   examples/confirm_leaks.sh SEED [FOLDER]
# pretrains a leaky policy with this seed and the shipped one's settings (into FOLDER, default bases), then trains on the world of
# the same seed: study confirm_leaks_SEED (RTI, no verifier, GRPO, on two repeated tasks a family;
# five seeds). About 40 minutes on one core. A rerun skips finished parts.
set -euo pipefail

seed="${1:?usage: examples/confirm_leaks.sh SEED [FOLDER]}"
bases="${2:-bases}"
python="${PYTHON:-python}"

[ -f "$bases/leaky_$seed/tiny/warmstart.json" ] || "$python" -m rti_exp.warmstart out="$bases/leaky_$seed" seed="$seed" models=[tiny] \
  training.steps=3600 training.documents=120000 \
  prior.right.nav_hard=0.08 prior.right.tel_hard=0.015 prior.right.pay_hard=0.008 prior.right.ret=0.03 \
  prior.correct_clean=0.12 prior.correct_leaky=0.7 prior.correct_wordy=0.14 prior.correct_wrong=0.04 \
  prior.rollouts=0.42 prior.validator=0.14 prior.corrector=0.26 prior.verifier=0.18

"$python" -m rti_exp.train -m "env.seed=$seed" "study=confirm_leaks_$seed" "policy.path=$bases/leaky_$seed/tiny" \
  'experiment=[leaks,rti],[leaks,no_verifier],[leaks,grpo]' seed=0,1,2,3,4
