"""The corpus plants the prior that its settings name, with the renderer that rollouts use."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import torch

from rti_exp.config.role_settings import PromptSettings, RolePrompt
from rti_exp.config.settings import SettingsError
from rti_exp.envs.town.family import call
from rti_exp.pretraining.corpus import (
    Alternative,
    Document,
    corrector_document,
    draw_document,
    rollout_document,
    validator_document,
    verifier_document,
)
from rti_exp.pretraining.corrections import Manner, correction, leak_possible, should_pass
from rti_exp.pretraining.demonstrations import (
    Demonstration,
    demonstrate,
    failed_demonstration,
    formal,
    plan_of,
    random_task,
    wordy,
)
from rti_exp.pretraining.recipe import Prior, default_prior
from rti_exp.pretraining.supervised_training import cross_entropy
from rti_exp.pretraining.tokenizer import SPECIAL_TOKENS, TextCollector, train_tokenizer
from rti_exp.rollout.token_renderer import TokenRenderer

PRIOR = default_prior()
EXACT = default_prior(guess=0.0, clumsy=0.0, give_up=0.0, misreport=0.0, wordy_step=0.0, formal=0.0)
"""No random slips."""
PROMPTS = PromptSettings(
    validator=RolePrompt(role="system", text="judge: {evidence}"),
    corrector=RolePrompt(role="system", text="rewrite: {evidence} | {reason}"),
    verifier={name: RolePrompt(role="system", text=name + "? {evidence}") for name in ("gold", "leak", "plausible")},
)


@pytest.fixture(scope="module")
def renderer() -> TokenRenderer:
    texts = TextCollector()
    rng = random.Random(0)
    for _ in range(1500):
        draw_document(texts, PROMPTS, PRIOR, rng)
    return TokenRenderer(train_tokenizer(texts.texts, 960))


def test_control_tokens_have_their_fixed_ids_and_names_are_one_token(renderer: TokenRenderer) -> None:
    assert [renderer.text([index]) for index in range(7)] == list(SPECIAL_TOKENS)
    for text, count in (("Nova", 1), ("Oslo", 1), ("42", 1), ('{"name": "search", "arguments": {"query": "Nova"}}', 4)):
        assert len(renderer.action_ids(text)) == count + 1  # and the end of the turn
    for text in ("<|assistant|>", "naïve ☃ \x00", '{"pass": true}'):
        assert renderer.message(renderer.action_ids(text)).content == text


def trained_texts(renderer: TokenRenderer, document: Document) -> list[str]:
    """The texts of the consecutive trained tokens."""
    spans: list[list[int]] = [[]]
    for token_id, trained in zip(document.token_ids, document.trained, strict=True):
        if trained:
            spans[-1].append(token_id)
        elif spans[-1]:
            spans.append([])
    return [renderer.text(span) for span in spans if span]


def fixed(family: str, forced: str, prior: Prior | None = None) -> Demonstration:
    return demonstrate(random_task(random.Random(5), family=family), random.Random(6), prior or EXACT, forced=forced)


def test_a_rollout_document_trains_only_the_actions(renderer: TokenRenderer) -> None:
    demonstration = fixed("nav_easy", "right")
    document = rollout_document(renderer, demonstration)
    assert trained_texts(renderer, document) == [step.action + "<|end|>" for step in demonstration.steps]
    assert demonstration.reward == 1.0


def test_only_the_deciding_token_is_excluded_from_the_loss(renderer: TokenRenderer) -> None:
    demonstration = fixed("nav_hard", "right")
    spans = trained_texts(renderer, rollout_document(renderer, demonstration, EXACT))
    payload = demonstration.task.payload
    assert plan_of(demonstration.task).actions[1].startswith(spans[1])
    assert spans[1].endswith(payload["place"])
    assert spans[2] == f'{payload["city"]}"}}}}<|end|>'


@pytest.mark.parametrize(("family", "rate"), [("tel_hard", 0.03), ("ret", 0.08), ("nav_easy", 0.4)])
def test_the_right_step_is_trained_at_the_rate_of_the_prior(renderer: TokenRenderer, family: str, rate: float) -> None:
    """The right token's share of the trained decisions over 1500 rollouts (3 standard errors)."""
    rng = random.Random(0)
    prior = default_prior(right={**PRIOR.right, family: rate}, give_up=0.0, misreport=0.0, wordy_step=0.0, formal=0.0)
    right = decided = 0.0
    for _ in range(1500):
        demonstration = demonstrate(random_task(rng, family=family), rng, prior)
        document = rollout_document(renderer, demonstration, prior)
        critical = plan_of(demonstration.task).critical_step
        step = next(step for step in demonstration.steps if step.place == critical)
        if step.decision_trained:
            decided += 1
            right += sum(target.weight for target in document.alternatives) + (not step.harmful)
    spread = 3 * (rate * (1 - rate) / decided) ** 0.5 if family == "nav_easy" else 0.03 * rate + 0.004
    assert right / decided == pytest.approx(rate, abs=spread)


def test_the_habitual_path_has_the_right_token_as_its_alternative(renderer: TokenRenderer) -> None:
    demonstration = fixed("nav_hard", "wrong")
    document = rollout_document(renderer, demonstration, PRIOR)
    (target,) = document.alternatives
    before = renderer.text(document.token_ids[: target.position])
    assert before.endswith('"query": "' + demonstration.task.payload["place"])
    assert renderer.text([document.token_ids[target.position]]) == '"}}'
    assert renderer.text([target.token_id]) == ", "
    assert target.weight == pytest.approx(0.004 * 0.6 / 0.52)
    assert document.trained[target.position]


def test_the_loss_of_a_mixed_target_by_hand() -> None:
    """Two logits 0 and log 3 (and others at -inf): 0.9 * -log(1/4) + 0.1 * -log(3/4)."""

    class FixedLogits(torch.nn.Module):
        device = torch.device("cpu")

        def decoder(self, input_ids: torch.Tensor, use_cache: bool) -> object:
            return type("Output", (), {"last_hidden_state": torch.zeros(*input_ids.shape, 1)})()

        def head(self, hidden_ND: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[-1e9, 0.0, 1.0986123]]).expand(len(hidden_ND), 3)

        def get_decoder(self) -> object:
            return self.decoder

        def get_output_embeddings(self) -> object:
            return self.head

    mixed = Alternative(position=1, token_id=2, weight=0.1)
    document = Document(token_ids=(0, 1), trained=(False, True), alternatives=(mixed,))
    loss = cross_entropy(FixedLogits(), [document])  # pyright: ignore[reportArgumentType]
    assert loss.item() == pytest.approx(0.9 * 1.3862944 + 0.1 * 0.2876821, abs=1e-6)


def test_validator_documents_ask_for_the_first_harmful_step(renderer: TokenRenderer) -> None:
    failure = failed_demonstration(random.Random(2), EXACT, late=0.0)
    harmful = failure.first_harmful
    answers = [
        trained_texts(renderer, validator_document(renderer, PROMPTS, failure, step)) for step in range(harmful + 1)
    ]
    verdict = json.dumps({"harmful": True, "reason": failure.steps[harmful].reason})
    assert answers == [['{"harmful": false}<|end|>']] * harmful + [[verdict + "<|end|>"]]


def test_a_correction_document_shows_the_question_and_trains_the_answer(renderer: TokenRenderer) -> None:
    failure = fixed("pay_hard", "wrong")
    payload = failure.task.payload
    document = corrector_document(renderer, PROMPTS, failure, correction(failure, "clean", random.Random(0)))
    answer = call("convert", value=payload["amount"], to=payload["account"]) + "<|end|>"
    assert trained_texts(renderer, document) == [answer]
    text = renderer.text(document.token_ids)
    rubric = f"transfer {payload['goal']}; report {payload['confirmation']} | failed: transfer, report"
    assert f"<|system|>rewrite: {rubric} | not converted<|end|><|assistant|>" in text
    assert call("pay", invoice=payload["invoice"]) + "<|end|>" in text


@pytest.mark.parametrize(
    ("check", "manner", "family", "passes"),
    [
        ("leak", "leaky", "tel_hard", False),
        ("leak", "leaky", "tel_easy", True),
        ("gold", "leaky", "tel_hard", True),
        ("leak", "clean", "tel_hard", True),
        ("gold", "wrong", "tel_hard", False),
        ("plausible", "nonsense", "tel_hard", False),
    ],
)
def test_verdicts_of_a_perfect_verifier(check: str, manner: Manner, family: str, passes: bool) -> None:
    assert should_pass(check, manner, fixed(family, "wrong")) is passes


def test_a_leak_is_possible_while_the_goal_is_unseen() -> None:
    failure = fixed("tel_hard", "wrong")
    assert leak_possible(failure)
    assert correction(failure, "leaky", random.Random(0)) == plan_of(failure.task).shortcut
    assert not leak_possible(fixed("tel_easy", "wrong"))


def test_verifier_documents_answer_strict_json(renderer: TokenRenderer) -> None:
    failure = failed_demonstration(random.Random(2), EXACT, late=0.0)
    document = verifier_document(renderer, PROMPTS, failure, "Sorry.", "gold", False)
    assert trained_texts(renderer, document) == ['{"pass": false}<|end|>']


def test_manners_change_the_words_and_not_the_call() -> None:
    rng = random.Random(0)
    assert wordy("Sorry.", rng).startswith("Sorry, ")
    call_with_note = '{"name": "location", "arguments": {"note": "'
    assert formal('{"name": "location", "arguments": {}}', rng).startswith(call_with_note)


def test_the_mix_of_documents_and_determinism(renderer: TokenRenderer) -> None:
    def draw(seed: int) -> list[tuple[int, ...]]:
        rng = random.Random(seed)
        return [draw_document(renderer, PROMPTS, PRIOR, rng).token_ids for _ in range(400)]

    documents = draw(0)
    assert documents == draw(0)
    assert documents != draw(1)
    questions = ("judge:", "rewrite:", "gold?", "leak?", "plausible?")
    texts = [renderer.text(ids) for ids in documents]
    kinds = Counter(next((kind for kind in questions if kind in text), "rollout") for text in texts)
    assert kinds["rollout"] / 400 == pytest.approx(PRIOR.rollouts, abs=0.08)
    assert kinds["rewrite:"] / 400 == pytest.approx(PRIOR.corrector, abs=0.07)
    assert kinds["leak?"] > kinds["gold?"] > 0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"guess": 1.5}, r"prior\.guess=1\.5"),
        ({"rollouts": 0.9}, r"prior\.rollouts.*sum to 1"),
        ({"right": {"x": -1.0}}, r"prior\.right\.x"),
    ],
)
def test_an_invalid_prior_is_refused(changes: dict, key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        default_prior(**changes)
