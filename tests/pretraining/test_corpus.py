"""The corpus plants the prior that its settings name, through the renderer that rollouts use."""

import json
import random
from collections import Counter

import pytest

from rti_exp.config.check import PromptSettings
from rti_exp.config.settings import RolePrompt, SettingsError
from rti_exp.envs.town.family import call
from rti_exp.pretraining.behaviour import Play, formal, plan_of, play, random_task, wordy
from rti_exp.pretraining.documents import (
    correction,
    corrector_document,
    draw_document,
    failed_play,
    leak_possible,
    passes,
    rollout_document,
    validator_document,
    verifier_document,
)
from rti_exp.pretraining.prior import Prior
from rti_exp.pretraining.tokenizer import SPECIAL_TOKENS, TextCollector, make_tokenizer
from rti_exp.rollout.token_renderer import TokenRenderer

PRIOR = Prior()
STILL = Prior(guess=0.0, clumsy=0.0, give_up=0.0, misreport=0.0, wordy_step=0.0, formal=0.0)
PROMPTS = PromptSettings(
    validator=RolePrompt(text="judge: {evidence}"),
    corrector=RolePrompt(text="rewrite: {evidence} | {reason}"),
    verifier={name: RolePrompt(text=name + "? {evidence}") for name in ("gold", "leak", "plausible")},
)


@pytest.fixture(scope="module")
def renderer() -> TokenRenderer:
    texts = TextCollector()
    rng = random.Random(0)
    for _ in range(1500):
        draw_document(texts, PROMPTS, PRIOR, rng)
    return TokenRenderer(make_tokenizer(texts.texts, 960))


def test_control_tokens_have_their_fixed_ids_and_names_are_one_token(renderer: TokenRenderer) -> None:
    assert [renderer.text([index]) for index in range(7)] == list(SPECIAL_TOKENS)
    for text, count in (("Nova", 1), ("Oslo", 1), ("42", 1), ('{"name": "search", "arguments": {"query": "Nova"}}', 4)):
        assert len(renderer.action_ids(text)) == count + 1  # and the end of the turn
    for text in ("<|assistant|>", "naïve ☃ \x00", '{"pass": true}'):
        assert renderer.message(renderer.action_ids(text)).content == text


def trained_text(renderer: TokenRenderer, token_ids: tuple[int, ...], trained: tuple[bool, ...]) -> list[str]:
    """The runs of trained tokens, as texts."""
    runs: list[list[int]] = [[]]
    for token_id, on in zip(token_ids, trained, strict=True):
        if on:
            runs[-1].append(token_id)
        elif runs[-1]:
            runs.append([])
    return [renderer.text(run) for run in runs if run]


def right_play(family: str) -> Play:
    rng = random.Random(1)
    return play(random_task(rng, family=family), rng, STILL, forced="right")


def test_a_rollout_document_trains_the_actions_and_nothing_else(renderer: TokenRenderer) -> None:
    played = right_play("nav_easy")
    document = rollout_document(renderer, played)
    assert trained_text(renderer, document.token_ids, document.trained) == [
        step.action + "<|end|>" for step in played.steps
    ]
    assert played.reward == 1.0


def test_only_the_deciding_token_is_left_out(renderer: TokenRenderer) -> None:
    task = random_task(random.Random(3), family="nav_hard")
    document = rollout_document(renderer, play(task, random.Random(4), STILL, forced="right"), STILL)
    search = plan_of(task).actions[1]
    place, city = task.payload["place"], task.payload["city"]
    runs = trained_text(renderer, document.token_ids, document.trained)
    assert search.startswith(runs[1])
    assert runs[1].endswith(place)
    assert runs[2] == f'{city}"}}}}<|end|>'


@pytest.mark.parametrize(("family", "rate"), [("tel_hard", 0.03), ("ret", 0.08), ("nav_easy", 0.4)])
def test_the_right_step_is_trained_at_the_rate_of_the_prior(renderer: TokenRenderer, family: str, rate: float) -> None:
    """The right token's share of what is trained at the decision, over 1500 rollouts (3 standard errors)."""
    rng = random.Random(0)
    prior = Prior(right={**PRIOR.right, family: rate}, give_up=0.0, misreport=0.0, wordy_step=0.0, formal=0.0)
    right = decided = 0.0
    for _ in range(1500):
        played = play(random_task(rng, family=family), rng, prior)
        document = rollout_document(renderer, played, prior)
        step = next(step for step in played.steps if step.place == plan_of(played.task).critical_step)
        if step.decision_trained:
            decided += 1
            right += sum(weight for _, _, weight in document.alternatives) + (not step.harmful)
    spread = 3 * (rate * (1 - rate) / decided) ** 0.5 if family == "nav_easy" else 0.03 * rate + 0.004
    assert right / decided == pytest.approx(rate, abs=spread)


def test_the_habitual_path_has_the_right_token_as_its_alternative(renderer: TokenRenderer) -> None:
    task = random_task(random.Random(3), family="nav_hard")
    document = rollout_document(renderer, play(task, random.Random(4), STILL, forced="wrong"), PRIOR)
    ((position, token_id, weight),) = document.alternatives
    assert renderer.text(document.token_ids[:position]).endswith('"query": "' + task.payload["place"])
    assert renderer.text([document.token_ids[position]]) == '"}}'
    assert renderer.text([token_id]) == ", "
    assert weight == pytest.approx(0.004 * 0.6 / 0.52)
    assert document.trained[position]


def test_the_loss_of_a_mixed_target_by_hand() -> None:
    """Two logits 0 and log 3 (and others at -inf): 0.9 * -log(1/4) + 0.1 * -log(3/4)."""
    import torch

    from rti_exp.pretraining.documents import Document
    from rti_exp.pretraining.training import loss_of

    class Fixed(torch.nn.Module):
        def model(self, input_ids: torch.Tensor, use_cache: bool) -> object:
            return type("Output", (), {"last_hidden_state": torch.zeros(*input_ids.shape, 1)})()

        def lm_head(self, hidden_ND: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[-1e9, 0.0, 1.0986123]]).expand(len(hidden_ND), 3)

        device = torch.device("cpu")

        def get_decoder(self) -> object:
            return self.model

        def get_output_embeddings(self) -> object:
            return self.lm_head

    document = Document(token_ids=(0, 1), trained=(False, True), alternatives=((1, 2, 0.1),))
    loss = loss_of(Fixed(), [document])  # pyright: ignore[reportArgumentType]
    assert loss.item() == pytest.approx(0.9 * 1.3862944 + 0.1 * 0.2876821, abs=1e-6)


def test_validator_documents_ask_for_the_first_harmful_step(renderer: TokenRenderer) -> None:
    rng = random.Random(2)
    played = failed_play(rng, STILL, late=0.0)
    harmful = played.first_harmful
    assert harmful is not None
    reason = played.steps[harmful].reason
    answers = [
        trained_text(renderer, document.token_ids, document.trained)
        for document in (validator_document(renderer, PROMPTS, played, step) for step in range(harmful + 1))
    ]
    expected = [['{"harmful": false}<|end|>']] * harmful
    assert answers == [*expected, [json.dumps({"harmful": True, "reason": reason}) + "<|end|>"]]


def test_what_a_correction_document_shows_and_trains(renderer: TokenRenderer) -> None:
    played = play(random_task(random.Random(5), family="pay_hard"), random.Random(6), STILL, forced="wrong")
    payload = played.task.payload
    document = corrector_document(renderer, PROMPTS, played, correction(played, "clean", random.Random(0)))
    assert trained_text(renderer, document.token_ids, document.trained) == [
        call("convert", value=payload["amount"], to=payload["account"]) + "<|end|>"
    ]
    text = renderer.text(document.token_ids)
    ask = (
        f"<|system|>rewrite: transfer {payload['goal']}; report {payload['confirmation']} | failed: transfer, report | "
    )
    assert ask + "not converted<|end|><|assistant|>" in text
    assert call("pay", invoice=payload["invoice"]) + "<|end|>" in text


def test_leaks_and_what_a_perfect_verifier_says() -> None:
    played = play(random_task(random.Random(5), family="tel_hard"), random.Random(6), STILL, forced="wrong")
    assert leak_possible(played, 1)
    assert correction(played, "leaky", random.Random(0)) == plan_of(played.task).shortcut
    assert not passes("leak", "leaky", played)
    assert passes("gold", "leaky", played)
    assert passes("leak", "clean", played)
    assert not passes("gold", "wrong", played)
    assert not passes("plausible", "nonsense", played)
    easy = play(random_task(random.Random(5), family="tel_easy"), random.Random(6), STILL, forced="wrong")
    assert not leak_possible(easy, 1)
    assert passes("leak", "leaky", easy)


def test_verifier_documents_answer_strict_json(renderer: TokenRenderer) -> None:
    played = failed_play(random.Random(2), STILL, late=0.0)
    document = verifier_document(renderer, PROMPTS, played, "Sorry.", "gold", False)
    assert trained_text(renderer, document.token_ids, document.trained) == ['{"pass": false}<|end|>']


def test_manners_change_the_words_and_not_the_call() -> None:
    rng = random.Random(0)
    assert wordy("Sorry.", rng).startswith("Sorry, ")
    assert formal('{"name": "location", "arguments": {}}', rng).startswith(
        '{"name": "location", "arguments": {"note": "'
    )


def test_the_mix_of_documents_and_determinism(renderer: TokenRenderer) -> None:
    def draw(seed: int) -> list[tuple[int, ...]]:
        rng = random.Random(seed)
        return [draw_document(renderer, PROMPTS, PRIOR, rng).token_ids for _ in range(400)]

    documents = draw(0)
    assert documents == draw(0)
    assert documents != draw(1)
    kinds = Counter(
        next(
            (kind for kind in ("judge:", "rewrite:", "gold?", "leak?", "plausible?") if kind in renderer.text(ids)), ""
        )
        for ids in documents
    )
    assert kinds[""] / 400 == pytest.approx(PRIOR.rollouts, abs=0.08)
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
def test_a_prior_without_sense_is_refused(changes: dict, key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        Prior(**changes)
