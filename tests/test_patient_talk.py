"""How questions and answers of doctor-patient-v0 are read, and what an answer is worth."""

import numpy as np
import pytest

from llm_arena.problems.doctor_patient.cases import Card, TableCases
from llm_arena.problems.doctor_patient.conditions import table
from llm_arena.problems.doctor_patient.talk import (
    answer_from_card,
    asked_items,
    inverted_items,
    is_open,
    judge,
    lie_from_card,
    read_answer,
)


def drawn(seed):
    rng, source = np.random.default_rng(seed), TableCases()
    return source.deal(rng, source.open(rng))


def test_every_word_and_phrase_of_an_item_is_found_and_nothing_else():
    for item in table().items.values():
        for text in (*item.aliases, item.phrase):
            assert asked_items(f"Do you have {text}?") == [item.name], text


@pytest.mark.parametrize(
    ("question", "items"),
    [
        ("fever", ["fever"]),
        ("Are you running a TEMPERATURE, or do you have the chills?", ["fever", "chills"]),
        ("Is there blood in your stool?", ["bloody stool"]),
        ("Is your headache on one side of the head?", ["one-sided headache"]),
        ("Do you smoke or drink too much?", ["smoking", "heavy drinking"]),
        ("fever fever Fever", ["fever"]),
        ("Do you like jazz?", []),
        ("feverfew tea?", []),
        ("", []),
        ("?!.,", []),
    ],
)
def test_questions_are_about_the_items_that_they_name(question, items):
    assert asked_items(question) == items


def test_open_questions():
    assert is_open("What else?") and is_open("How are you feeling today?") and is_open("Tell me more.")
    assert not is_open("Do you like jazz?") and not is_open("Do you have fever or anything else?") and not is_open("")


@pytest.mark.parametrize(
    ("answer", "asked", "stances"),
    [
        ("Yes.", ["fever"], {"fever": "yes"}),
        ("no", ["fever", "chills"], {"fever": "no", "chills": "no"}),
        ("Yes, I have a fever.", ["fever"], {"fever": "yes"}),
        ("No, I don't have a fever.", ["fever"], {"fever": "no"}),
        ("No, I don\u2019t have a fever.", ["fever"], {"fever": "no"}),
        ("I do not have fever, cough or chills", ["fever"], {"fever": "no", "cough": "no", "chills": "no"}),
        ("No fever, but I do have a cough.", ["fever", "cough"], {"fever": "no", "cough": "yes"}),
        ("No, I have a cough.", ["cough"], {"cough": "yes"}),
        ("I have a cough and no fever", ["fever"], {"cough": "yes", "fever": "no"}),
        ("I have never had a fever.", ["fever"], {"fever": "no"}),
        ("I never smoked.", ["smoking"], {"smoking": "no"}),
        ("Fever: yes. Cough: no.", ["fever", "cough"], {"fever": "yes", "cough": "no"}),
        ("Fever? No. Chills? Yes!", ["fever", "chills"], {"fever": "no", "chills": "yes"}),
        ("My temperature is normal, and I have a good appetite.", ["fever"], {"fever": "no", "loss of appetite": "no"}),
        ("My appetite is poor.", [], {"loss of appetite": "yes"}),
        ("I do.", ["fever"], {"fever": "yes"}),
        ("I don't.", ["fever"], {"fever": "no"}),
        ("Not at all.", ["fever"], {"fever": "no"}),
        ("I don't know.", ["fever"], {}),
        ("I'm not sure about fever.", ["fever"], {}),
        ("Hello doctor.", ["fever"], {}),
        ("I have no fever. I have a fever.", ["fever"], {"fever": "both"}),
        ("Yes, a fever.", ["fever", "cough"], {"fever": "yes"}),  # the cough was evaded
        ("", ["fever"], {}),
        # not had
        ("I'm fine.", ["fever"], {"fever": "no"}),
        ("I feel fine.", ["fever"], {"fever": "no"}),
        ("Right now, no.", ["fever"], {"fever": "no"}),
        ("Indeed not.", ["fever"], {"fever": "no"}),
        ("Sure, no.", ["fever"], {"fever": "no"}),
        ("Fever, no.", ["fever"], {"fever": "no"}),
        ("Fever - no.", ["fever"], {"fever": "no"}),
        ("Fever: nothing.", ["fever"], {"fever": "no"}),
        ("My temperature was normal.", ["fever"], {"fever": "no"}),
        ("My temperature isn't high.", ["fever"], {"fever": "no"}),
        # had
        ("Sure.", ["fever"], {"fever": "yes"}),
        ("I think so.", ["fever"], {"fever": "yes"}),
        ("Yes, I can't stop coughing.", ["cough"], {"cough": "yes"}),
        ("I can't stop coughing.", ["cough"], {"cough": "yes"}),
        ("Yes, I couldn't sleep because of the cough.", ["cough"], {"cough": "yes"}),
        ("Yes, it won't go away.", ["cough"], {"cough": "yes"}),
        ("No chest pain, only a cough.", ["chest pain"], {"chest pain": "no", "cough": "yes"}),
        (
            "No, I don't have chills, just the fever and cough.",
            ["chills"],
            {"chills": "no", "fever": "yes", "cough": "yes"},
        ),
        ("No chills but a fever", ["chills"], {"chills": "no", "fever": "yes"}),
        ("No chills however a fever", ["chills"], {"chills": "no", "fever": "yes"}),
        # neither a yes nor a no of an item
        ("I'm not so good.", ["fever"], {}),
        ("Yes, a fever, but I don't have chills.", ["fever", "chills"], {"fever": "yes", "chills": "no"}),
        (
            "Yes, I have a fever but no chills or rash.",
            ["fever", "rash"],
            {"fever": "yes", "chills": "no", "rash": "no"},
        ),
        ("I have a fever, no cough", ["fever"], {"fever": "yes", "cough": "no"}),
    ],
)
def test_answers_claim_and_deny(answer, asked, stances):
    assert read_answer(answer, asked).stances == stances


@pytest.mark.parametrize(
    ("question", "answer", "stances"),
    [
        ("Are you vaccinated?", "Yes.", {"no vaccination": "no"}),
        ("Are you vaccinated?", "Yes, I am vaccinated.", {"no vaccination": "no"}),
        ("Are you vaccinated?", "No.", {"no vaccination": "yes"}),
        ("Are you vaccinated?", "No, I'm not vaccinated.", {"no vaccination": "yes"}),
        ("Are you unvaccinated?", "Yes.", {"no vaccination": "yes"}),
        ("Can you smell?", "Yes.", {"loss of smell": "no"}),
        ("Is your blood pressure normal?", "Yes.", {"high blood pressure": "no"}),
        ("Is your blood pressure high?", "Yes.", {"high blood pressure": "yes"}),
        ("Is your temperature normal?", "Yes, it is fine.", {"fever": "no"}),
        ("Do you have a good appetite?", "Yes.", {"loss of appetite": "no"}),
        ("Do you have a good appetite?", "No.", {"loss of appetite": "yes"}),
        ("Is your immune system healthy?", "Yes.", {"weak immune system": "no"}),
        ("How is your appetite?", "It is good.", {"loss of appetite": "no"}),
    ],
)
def test_questions_whether_all_is_well_turn_yes_and_no_round(question, answer, stances):
    assert read_answer(answer, asked_items(question), inverted_items(question)).stances == stances


def test_what_the_rule_cannot_see_is_what_it_says():
    # these are the documented limits: a change here changes the module's docstring too
    assert read_answer("My pipes hurt.", ["fever"]).stances == {}
    assert read_answer("My sister has a cough.", []).stances == {"cough": "yes"}
    assert read_answer("I can't deny that I have no fever.", ["fever"]).stances == {"fever": "no"}


CARD = Card(("fever", "cough"), ("smoking",))


@pytest.mark.parametrize(
    ("answer", "asked", "score", "counts"),
    [
        ("Yes.", ["fever"], 1.0, (0, 0, 0, 0)),
        ("No.", ["fever"], 0.0, (0, 1, 0, 0)),
        ("Yes.", ["chills"], 0.0, (1, 0, 0, 0)),
        ("No.", ["chills"], 1.0, (0, 0, 0, 0)),
        ("Yes, I smoke.", ["smoking"], 1.0, (0, 0, 0, 0)),
        ("I have a fever and I do not have chills.", ["fever", "chills"], 1.0, (0, 0, 0, 0)),
        ("Yes, and I have a cough.", ["fever"], 0.5, (0, 0, 0, 1)),
        ("Yes, and I have chills.", ["fever"], 0.0, (1, 0, 0, 1)),
        ("I don't know.", ["fever"], 0.5, (0, 0, 1, 0)),
        ("I have a fever.", ["fever", "chills"], 0.5, (0, 0, 1, 0)),
        ("I have a fever. I don't have a fever.", ["fever"], 0.0, (0, 1, 0, 0)),
        ("I have chills. I don't have chills.", ["chills"], 0.0, (1, 0, 0, 0)),
        ("Yes, I think I have pneumonia.", ["fever"], 0.5, (0, 0, 0, 1)),
        ("I like jazz.", [], 1.0, (0, 0, 0, 0)),
        ("I have a cough.", [], 0.5, (0, 0, 0, 1)),
        ("Yes, a fever. Perhaps coughing blood.", ["fever"], 0.5, (0, 0, 0, 1)),  # a guess is told as well
        ("Yes. Maybe a cough.", ["fever"], 0.5, (0, 0, 0, 1)),
    ],
)
def test_answers_are_judged_by_the_card(answer, asked, score, counts):
    judged = judge(CARD, read_answer(answer, asked), asked, [], open_question=False)
    assert judged.score == score
    assert (judged.false_claims, judged.false_denials, judged.evaded, judged.volunteered) == counts


@pytest.mark.parametrize(
    ("answer", "told", "score"),
    [
        ("I also have a cough.", ["fever"], 1.0),
        ("I have a fever and a cough, and I smoke.", ["fever"], 0.5),
        ("I have chills.", ["fever"], 0.0),
        ("No, nothing else.", ["fever"], 0.0),
        ("No, nothing else.", ["fever", "cough"], 1.0),
        ("I like jazz.", ["fever"], 0.5),
        ("I do not have a seizure.", ["fever"], 0.0),
        ("No, nothing else, no seizure.", ["fever"], 0.0),
        ("No, nothing else, no seizure.", ["fever", "cough"], 0.5),
        ("No, but I have a cough.", ["fever"], 1.0),  # it says no, and then what there is
    ],
)
def test_an_open_question_asks_for_one_thing_more(answer, told, score):
    assert judge(CARD, read_answer(answer, []), [], told, open_question=True).score == score


def test_the_cards_own_answers_are_faithful_for_every_item():
    items = list(table().items)
    rng, shuffled = np.random.default_rng(0), 0
    for seed in range(60):
        case = drawn(seed)
        for item in items:
            asked = [item, *(items[int(n)] for n in rng.permutation(len(items))[: rng.integers(3)] if items[n] != item)]
            answer = answer_from_card(case.card, asked, [case.complaint], open_question=False)
            reading = read_answer(answer, asked)
            assert judge(case.card, reading, asked, [case.complaint], open_question=False).score == 1.0, answer
            assert reading.stances == {one: "yes" if case.card.has(one) else "no" for one in asked}
        told, order = {case.complaint}, []
        for _ in range(len(case.symptoms)):
            reading = read_answer(answer_from_card(case.card, [], told, open_question=True), [])
            assert judge(case.card, reading, [], told, open_question=True).score == 1.0
            told |= set(reading.stances)
            order += reading.stances
        assert told == set(case.symptoms)
        shuffled += order != sorted(order, key=items.index)
    assert shuffled > 30  # or each thing told would deny those before it in the table


def test_the_liars_answers_are_never_worth_anything():
    items = list(table().items)
    for seed in range(20):
        card = drawn(seed).card
        for item in items:
            reading = read_answer(lie_from_card(card, [item]), [item])
            assert judge(card, reading, [item], [], open_question=False).score == 0.0
