#!/usr/bin/env bash
# GRPO against RTI with SmolLM2-135M on the embedded town, at a size that needs a GPU:
#   examples/smollm2_gpu.sh [FOLDER]
# warms the model up (ten times as long as on a CPU, into FOLDER, default policies/smollm2_gpu), then trains 60 iterations
# of 16 tasks x 8 with delta 0 and 5 and five seeds: study smollm2_gpu. A rerun skips finished parts.
# It has not been run on a GPU yet.
set -euo pipefail

folder="${1:-policies/smollm2_gpu}"
python="${PYTHON:-python}"

[ -f "$folder/warmstart.json" ] || "$python" -m rti_exp.warmstart policy=smollm2 "out=$folder" device=cuda \
  precision=bf16-mixed training.steps=4000 training.documents=40000 training.warmup=100 save_every=500

"$python" -m rti_exp.train +sweeps=smollm2 study=smollm2_gpu "policy.path=$folder" trainer=gpu verifier=policy \
  max_iterations=60 tasks_per_iteration=16 group_size=8 intervention.corrections=3 eval.every=20 eval.tasks=96 \
  eval.samples=8 engine.cache_rows=512 algorithm.micro_batch_tokens=16384 seed=0,1,2,3,4
