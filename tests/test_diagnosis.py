"""The scripted doctor and patients of doctor-patient-v0."""

import numpy as np
import pytest

import llm_arena
from llm_arena.problems.doctor_patient import diagnosis
from llm_arena.problems.doctor_patient.conditions import table


def facts(**changes):
    given = {
        "age": 40, "sex": "female", "complaint": "cough", "asked": [], "answers": {"cough": True}, "results": {},
        "questions_left": 9, "tests_left": 3, "question_cost": 0.01, "test_cost": 0.015, "ranked": 3,
        "nothing_else": False, "open_left": 2,
    }  # fmt: skip
    return given | changes


def test_the_posterior_is_bayes_rule_done_slowly():
    told = facts(answers={"cough": True, "fever": True, "smoking": False}, results={"chest x-ray": "consolidation"})
    known, slow = table(), {}
    for name, row in known.conditions.items():
        low, high = row.ages
        chance = row.weight / sum(other.weight for other in known.conditions.values())
        chance *= (
            (low <= 40 <= high) / (high - low + 1) * row.female * known.leading(name, "female", 40).get("cough", 0.0)
        )
        fever, smoking = (known.chance(name, item) * 0.96 + 0.02 for item in ("fever", "smoking"))
        slow[name] = chance * fever * (1 - smoking) * known.findings(name, "chest x-ray")["consolidation"]
    total = sum(slow.values())
    got = dict(zip(known.conditions, diagnosis.posterior(told), strict=True))
    assert all(got[name] == pytest.approx(chance / total, abs=1e-6) for name, chance in slow.items())
    assert diagnosis.ranking(diagnosis.posterior(told), 2)[0] == "pneumonia"


def test_the_expected_gain_is_the_loss_of_entropy_done_slowly():
    chances = np.array([0.5, 0.3, 0.2])
    outcomes = np.array([[[0.9, 0.1]], [[0.5, 0.5]], [[0.1, 0.9]]])

    def entropy(p):
        return -sum(x * np.log(x) for x in p if x > 0)

    slow = entropy(chances)
    for outcome in range(2):
        joint = chances * outcomes[:, 0, outcome]
        slow -= joint.sum() * entropy(joint / joint.sum())
    assert diagnosis._gains(chances, outcomes)[0] == pytest.approx(slow, abs=1e-9)


def test_the_doctor_asks_nothing_twice_and_stops_when_nothing_is_worth_its_price():
    assert diagnosis.next_step(facts()).startswith(("ASK: ", "TEST: "))
    first = diagnosis.next_step(facts(tests_left=0))
    assert first.startswith("ASK: ")
    assert diagnosis.next_step(facts(tests_left=0, asked=[first[5:]])) != first
    assert diagnosis.next_step(facts(question_cost=1, test_cost=1)).startswith("DIAGNOSIS: 1. ")
    assert diagnosis.next_step(facts(questions_left=0, tests_left=0)).count(";") == 2


def returns(doctor, answering, games=60, **kwargs):
    """Returns [games, 2]: the returns of both seats, played by scripted players (None: random legal replies)."""
    env = llm_arena.make("doctor-patient-v0", **kwargs)
    paid = []
    for seed in range(games):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        while not env.over:
            seat = env.agent_selection
            name = doctor if seat == "doctor_0" else answering
            env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
        paid.append([env.returns["doctor_0"], env.returns.get("patient_0", 0.0)])
    return np.array(paid)


def lower(better, worse):
    """Returns the lower end of the 95 % interval of a mean difference over the same seeds."""
    difference = better - worse
    return difference.mean() - 1.96 * difference.std() / np.sqrt(len(difference))


@pytest.mark.parametrize("patient", ["faithful", "liar", None])
def test_the_bayes_doctor_beats_random_with_any_patient(patient):
    assert lower(returns("bayes", patient)[:, 0], returns(None, patient)[:, 0]) > 0.3


def test_the_bayes_doctor_is_nearly_always_right_with_a_faithful_patient():
    for kwargs in ({}, {"split": "heldout"}):
        assert np.mean(returns("bayes", None, 100, patient="card", **kwargs)[:, 0] > 0.6) > 0.9


def test_the_faithful_patient_beats_random_and_the_liar_is_caught():
    asked = returns("bayes", "faithful")
    assert set(asked[:, 1]) <= {0.0, 1.0}  # 0 if it was asked nothing
    assert lower(asked[:, 1], returns("bayes", None)[:, 1]) > 0.1
    assert returns("bayes", "liar")[:, 1].max() == 0.0 and returns(None, "liar")[:, 1].max() == 0.0


def test_nothing_else_denies_every_symptom_that_was_not_told():
    heard = diagnosis.posterior(facts(nothing_else=True))
    said = {item: False for item in table().symptoms} | {"cough": True}
    assert np.allclose(heard, diagnosis.posterior(facts(answers=said)))
    assert not np.allclose(heard, diagnosis.posterior(facts()))


def test_what_an_open_question_may_bring_adds_up_to_one():
    said = np.full((2, len(table().items)), 0.01)
    said[1, list(table().items).index("fever")] = 0.9
    chances = diagnosis._open_outcomes(said, {"cough": True})
    assert chances.shape == (2, len(table().symptoms)) and np.allclose(chances.sum(axis=1), 1)  # one told, and nothing
    assert chances[0, -1] == pytest.approx(0.99 ** (len(table().symptoms) - 1))


def spamming(view, rng):
    """Asks open questions as long as they are answered, and takes all that it did not hear of as absent."""
    heard = view.messages[-1]["content"]
    if view.facts["open_left"] and not view.facts["nothing_else"] and "can't say" not in heard:
        return "ASK: What else?"
    return diagnosis.next_step(view.facts | {"nothing_else": True})


def test_open_questions_and_then_denying_the_rest_does_not_beat_bayes(monkeypatch):
    game = type(llm_arena.make("doctor-patient-v0"))
    monkeypatch.setattr(game, "baselines", {**game.baselines, "spamming": spamming})
    assert (
        lower(returns("bayes", None, 150, patient="card")[:, 0], returns("spamming", None, 150, patient="card")[:, 0])
        > 0
    )


def test_both_questions_and_tests_are_worth_their_price():
    whole = returns("bayes", None, 250, patient="card")[:, 0]
    for none in ({"max_tests": 0}, {"max_questions": 0}):
        assert lower(whole, returns("bayes", None, 250, patient="card", **none)[:, 0]) > 0


def test_a_liar_hurts_the_doctor():
    assert lower(returns("bayes", "faithful")[:, 0], returns("bayes", "liar")[:, 0]) > 0.05


def test_the_card_answers_as_the_faithful_patient_does():
    seated, alone = returns("bayes", "faithful", 30), returns("bayes", None, 30, patient="card")
    assert (seated[:, 0] == alone[:, 0]).all()
