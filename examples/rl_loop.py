"""Rollout-Time Intervention in one file: the embedded world, the tiny policy, plain PyTorch. Start reading here.

    python examples/rl_loop.py            # 24 iterations, as `python -m rti_exp.train`: minutes on a laptop
    python examples/rl_loop.py --delta 0  # the gate never opens: GRPO

Each iteration rolls out G episodes of each task. Where all of them failed, it finds the first harmful step, rewrites
it, checks the rewrite, gates it by its perplexity, and continues from there. Then it takes one GRPO step. The package
does the same in batches over all groups, with resuming, several ranks, other algorithms and records: see
`rti_exp/training/learner.py` and `rti_exp/intervention/pipeline.py`.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

import torch

from rti_exp.config.paths import policy_folder
from rti_exp.config.role_settings import JudgeSettings, RolePrompt, SamplingSettings, VerifierSettings
from rti_exp.config.settings import AlgorithmSettings, Baseline, RolloutSettings, Scope
from rti_exp.engines.base import ScoreRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.envs.town import Town
from rti_exp.intervention.case import Case, Corrected, HarmfulStep, with_evidence
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.models.load import load
from rti_exp.objective.grpo import GRPO
from rti_exp.objective.perplexity import log_perplexity, passes_gate
from rti_exp.objective.weights import correction_weights
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.environment_calls import replayed_episode
from rti_exp.rollout.live_episode import LiveEpisode
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.training.batch import micro_batches, trained_tokens
from rti_exp.training.samples import to_samples
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Author, Correction, Evidence, Fork, Group, Trajectory

GROUP_SIZE, TASKS, SEED = 8, 12, 0
ROLLOUT = RolloutSettings(temperature=1.0, top_p=1.0, max_tokens=32, max_context=96)
JUDGE = JudgeSettings(temperature=0.0, max_tokens=32, retries=1, steps_per_call=8)
VERIFY = VerifierSettings(
    temperature=0.0, max_tokens=32, retries=1, policy=True, rule=False, checks=["gold", "leak", "plausible"]
)
WRITER = SamplingSettings(temperature=1.0, max_tokens=32)
UPDATE = AlgorithmSettings(
    scope=Scope.all,
    updates=1,
    dynamic_sampling=0,
    learning_rate=3e-4,
    adam_beta1=0.9,
    adam_beta2=0.95,
    weight_decay=0.0,
    gradient_clip=1.0,
    micro_batch_tokens=4096,
    normalize_std=True,
    baseline=Baseline.mean,
    clip_low=0.2,
    clip_high=0.28,
    beta=0.0,
    advantage_eps=1e-6,
)
CHECKS = {name: RolePrompt(role="system", text=f"{name}? {{evidence}}") for name in ("gold", "leak")}
CHECKS["plausible"] = RolePrompt(role="system", text="plausible?")


class Loop:
    def __init__(self, delta: float) -> None:
        loaded = load(policy_folder("builtin:tiny"), "float32", given="builtin:tiny")
        self.model, self.delta, renderer = loaded.model.eval(), delta, TokenRenderer(loaded.tokenizer)
        self.world = Town(seed=SEED, train_tasks=64, heldout_tasks=12, families=None, max_turns=6)
        self.engine = LocalEngine(self.model, max_batch=256, cache_rows=256, prefill_tokens=4096)
        self.collector = Collector(
            environment=self.world, engine=self.engine, renderer=renderer, settings=ROLLOUT, seed=SEED
        )
        role = {"engine": self.engine, "renderer": renderer}
        self.validator = Validator(**role, prompt=RolePrompt(role="system", text="judge: {evidence}"), settings=JUDGE)
        self.corrector = SelfCorrector(
            **role, prompt=RolePrompt(role="system", text="rewrite: {evidence} | {reason}"), settings=WRITER
        )
        self.verifier = Verifier(**role, prompts=CHECKS, settings=VERIFY)
        self.algorithm = GRPO(UPDATE)
        self.log_probs = TrainedPositions(self.model)
        betas = (UPDATE.adam_beta1, UPDATE.adam_beta2)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=UPDATE.learning_rate, betas=betas, weight_decay=UPDATE.weight_decay
        )

    def iteration(self, number: int) -> str:
        tasks = random.Random(f"{SEED} {number}").sample(list(self.world.tasks("train")), TASKS)
        with torch.no_grad():
            sampled = self.collector.collect(tasks, GROUP_SIZE, number)
            opens = self.delta >= 1  # a perplexity is at least 1
            groups = [self.intervene(group, number) if opens and group.all_failed(1.0) else group for group in sampled]
        steps = self.update(groups)
        self.engine.sync(number)  # the engine forgets what it cached under the old weights
        failed = sum(group.all_failed(1.0) for group in sampled)
        rescued = sum(group.trajectories != group.sampled for group in groups)
        rewards = [trajectory.reward for group in sampled for trajectory in group.sampled]
        mean = sum(rewards) / len(rewards)
        return f"iteration {number}: reward {mean:.3f}, all failed {failed}, rescued {rescued}, {steps} trained tokens"

    def intervene(self, group: Group, iteration: int) -> Group:
        """The group with up to half of its failures replaced by corrected trajectories that succeed."""
        trajectories = list(group.trajectories)
        for trajectory in group.sampled[: GROUP_SIZE // 2]:
            corrected = self.find_and_correct(group, trajectory, iteration)
            child = None if corrected is None else self.gate_and_continue(corrected, iteration)
            if child is not None and child.reward >= 1.0:
                trajectories[trajectory.member] = child
        return replace(group, trajectories=tuple(trajectories))

    def find_and_correct(self, group: Group, trajectory: Trajectory, iteration: int) -> Corrected | None:
        """The first harmful step with its rewrite, if the validator finds one and the verifier passes the rewrite."""
        case = Case(
            group=0, occurrence=0, task=group.task, trajectory=trajectory, evidence=Evidence(level="rubric"),
            seed=SEED, iteration=iteration,
        )  # fmt: skip
        case = with_evidence(case, self.world)  # the failed conditions of success; only the roles see them
        verdict = self.validator.judge([case])[0]
        step = getattr(verdict, "step", None)
        if step is None:
            return None
        harmful = HarmfulStep(case=case, verdict=verdict, step=step, sample=0)  # pyright: ignore[reportArgumentType]
        correction = self.corrector.correct([harmful])[0]
        if not isinstance(correction, Correction) or correction.message == harmful.turn.message:
            return None
        corrected = Corrected(harmful=harmful, correction=correction)
        return corrected if all(check.passed for check in self.verifier.check([corrected])[0]) else None

    def gate_and_continue(self, corrected: Corrected, iteration: int) -> Trajectory | None:
        """The trajectory that continues from the corrected step, if its perplexity passes the gate."""
        action = corrected.correction.action_ids
        rollout, calibration = self.engine.score(
            [
                ScoreRequest(prompt_ids=corrected.prompt_ids, token_ids=action),  # pi_roll
                ScoreRequest(prompt_ids=corrected.correction.prompt_ids, token_ids=action),  # pi_cal
            ]
        )
        if not passes_gate(log_perplexity(rollout), self.delta):
            return None
        weights = correction_weights(torch.tensor(calibration).double(), torch.tensor(rollout).double(), 0.2)
        case, step = corrected.case, corrected.step
        turns = case.trajectory.turns[:step]
        start = replayed_episode(self.world, case.task, turns, case.trajectory.turns[step].state_hash)
        fork = Fork(parent=case.trajectory.member, step=step, intervention_id=corrected.harmful.id)
        live = LiveEpisode(
            case.task, case.trajectory.member, start, self.collector.rules,
            turns=turns, fork=fork, correction_weights=tuple(weights.tolist()),
        )  # fmt: skip
        live.take_turn(action, rollout, Author.CORRECTOR)
        return self.collector.run([live], iteration=iteration, purpose="continue")[0]

    def update(self, groups: list[Group]) -> int:
        """One optimizer step on the iteration's trained tokens; their number."""
        samples = [
            sample for group in groups for sample in to_samples(group, self.algorithm.advantages(group), Scope.all)
        ]  # groups without signal give no sample
        total = trained_tokens(samples)
        for batch in micro_batches(
            samples, max_tokens=UPDATE.micro_batch_tokens, total_trained_tokens=total, packed=self.log_probs.packs
        ):
            loss, _ = self.algorithm.loss(self.log_probs(batch).log_probs_BT, batch)
            loss.backward()
        if total:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), UPDATE.gradient_clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--delta", type=float, default=5.0, help="perplexity gate; below 1 is GRPO, inf is no gate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    loop = Loop(options.delta)
    for number in range(1, options.iterations + 1):
        print(loop.iteration(number), flush=True)


if __name__ == "__main__":
    main()
