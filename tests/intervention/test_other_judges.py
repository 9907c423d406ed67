"""Validator and verifier played by another model than the policy."""

from pathlib import Path

import pytest
import torch

from rti_exp.config.check import check, check_files
from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import JudgeSettings, RolePrompt, VerifierSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.experiment.policies import PolicyLoader
from rti_exp.experiment.roles import RoleBuilder
from rti_exp.intervention.case import Case, Corrected
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.types import Correction, Evidence, Message, Verdict
from tests.support.attempts import harmful_step
from tests.support.chat_fakes import chat_tokenizer, save_chat_policy
from tests.support.fakes import GuessWorld, call, wrong_texts
from tests.support.interventions import episode

OTHER = ChatRenderer(chat_tokenizer("smollm2"))
PROMPT = RolePrompt(text="judge: {evidence}", role="user")


def case() -> Case:
    world = GuessWorld()
    task = world.tasks("train")[0]
    start = world.start(task)
    return Case(
        group=0,
        occurrence=0,
        task=task,
        trajectory=episode(world, task, 0, wrong_texts(task)),
        evidence=Evidence(level="rubric", rubric=("the key fits",)),
        seed=0,
        iteration=1,
        opening=tuple(start.messages),
        tools=tuple(start.tools),
    )


def told(requests: list[GenerateRequest]) -> list[str]:
    return [OTHER.text(request.prompt_ids) for request in requests]


def test_another_tokenizers_validator_is_told_the_conversation_in_its_own_format():
    engine = ScriptedEngine(
        lambda prompt, seed: '{"harmful": true}' if "stuck" in prompt else '{"harmful": false}', OTHER
    )
    validator = Validator(
        engine=engine,
        renderer=OTHER,
        prompt=PROMPT,
        settings=default_settings(JudgeSettings, max_tokens=64),
        same_tokenizer=False,
    )
    [verdict] = validator.judge([case()])
    assert isinstance(verdict, Verdict)
    assert (verdict.kind, verdict.step) == ("harmful", 1 if "stuck" in told(engine.generate_requests)[1] else 2)
    first = told(engine.generate_requests)[0]
    wrong = wrong_texts(case().task)[0]
    assert first.startswith("<|im_start|>system\n")
    assert first.endswith(
        f"<|im_start|>user\nbox a<|im_end|>\n<|im_start|>assistant\n{wrong}<|im_end|>\n"
        "<|im_start|>user\njudge: the key fits<|im_end|>\n<|im_start|>assistant\n"
    )


def test_another_tokenizers_verifier_is_told_the_correction():
    engine = ScriptedEngine(lambda prompt, seed: '{"pass": true}', OTHER)
    verifier = Verifier(
        engine=engine,
        renderer=OTHER,
        prompts={"gold": PROMPT},
        settings=default_settings(VerifierSettings, checks=["gold"], max_tokens=64),
        same_tokenizer=False,
    )
    text = call("take", key="red")
    message = OTHER.message(OTHER.action_ids(text))
    written = Correction(prompt_ids=(1,), action_ids=(2,), text=text, message=message, source="self")
    attempt = Corrected(harmful=harmful_step(case()), correction=written)
    [[made]] = verifier.check([attempt])
    assert (made.name, made.passed) == ("gold", True)
    assert f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>user\njudge:" in told(engine.generate_requests)[0]


def test_another_tokenizers_verifier_is_told_the_thinking_of_a_correction_too():
    engine = ScriptedEngine(lambda prompt, seed: '{"pass": true}', OTHER)
    verifier = Verifier(
        engine=engine,
        renderer=OTHER,
        prompts={"leak": PROMPT},
        settings=default_settings(VerifierSettings, checks=["leak"], max_tokens=64),
        same_tokenizer=False,
    )
    message = Message(role="assistant", content="red", thinking="as the rubric says")
    written = Correction(prompt_ids=(1,), action_ids=(2,), text="red", message=message, source="self")
    verifier.check([Corrected(harmful=harmful_step(case()), correction=written)])
    [shown] = told(engine.generate_requests)
    assert "<|im_start|>assistant\n<think>\nas the rubric says\n</think>\n\nred<|im_end|>" in shown


def test_one_model_is_loaded_once_for_both(tmp_path: Path, composed):
    folder = save_chat_policy(tmp_path, "smollm2")
    overrides = [f"validator.policy={folder}", f"verifier.path={folder}"]
    config = check(composed(*overrides, "rollout.max_context=96"))
    check_files(config)
    loader = PolicyLoader(config.policy, config.engine, config.run.seed)
    policy = loader.policy()
    roles = RoleBuilder(policy, loader, config.prompts, torch.device("cpu"))
    validator, verifier = roles.validator(config.validator), roles.verifier(config.verifier)
    assert validator.engine is verifier.engine is not policy.engine
    assert validator.renderer is verifier.renderer is not policy.renderer
    same = check(composed("validator.policy=builtin:tiny"))
    validator = roles.validator(same.validator)
    assert validator.renderer is policy.renderer
    assert validator.engine is not policy.engine


def test_the_policy_itself_is_the_default_and_the_same_run(composed):
    config = check(composed())
    assert "policy" in config.plain["validator"]
    assert check(composed("validator.policy=null")).key == config.key
    assert check(composed("verifier.policy=true")).key == config.key
    assert len({check(composed(text)).key for text in ("validator.policy=x", "verifier.path=x", "seed=0")}) == 3


@pytest.mark.parametrize("key", ["validator.policy", "verifier.path"])
def test_a_missing_model_is_refused(composed, key):
    with pytest.raises(SettingsError, match=rf"{key}='nowhere': there is no nowhere"):
        check_files(check(composed(f"{key}=nowhere")))
    with pytest.raises(SettingsError, match=r"verifier\.path='': must be a text that is not blank"):
        check(composed("verifier.path=''"))
