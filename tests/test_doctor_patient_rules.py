"""The rules of doctor-patient-v0: who says what, when it ends, what is paid, and which arguments there are."""

import contextlib
import json
import re
import time

import numpy as np
import pytest

import llm_arena
from doctor_patient_parts import CASE, RIGHT, heard
from doctor_patient_parts import game as game  # a fixture: the alias says that it is meant to be here
from doctor_patient_parts import played as played  # likewise
from llm_arena.checks import check_env, play_out
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply
from llm_arena.problems.doctor_patient.conditions import table
from llm_arena.problems.doctor_patient.lines import read_protocol
from llm_arena.types import Cause, Ending, Reply

# ---- rewards, by hand ----------------------------------------------------------------------------------------------

FIVE = ["ASK: fever", "ASK: sputum", "ASK: chills", "ASK: rash", "ASK: smoking"]


def test_the_worked_numbers(played):
    before = [*FIVE, "TEST: chest x-ray"]
    costs = 5 * 0.01 + 2 * 0.015
    for names, credit, score in [
        ("1. pneumonia", 1, 1.0),
        ("1. influenza; 2. pneumonia", 0.5, 0.5),
        ("1. gout; 2. influenza; 3. pneumonia", 1 / 3, 1 / 3),
        ("1. acute bronchitis", 0.1, 0.1),  # a look-alike
        ("1. influenza; 2. acute bronchitis", 0.0, 0.0),  # only the first name can be a look-alike
        ("1. gout", 0.0, 0.0),
    ]:
        env = played(*before, f"DIAGNOSIS: {names}", patient="card")
        assert env.returns == pytest.approx({"doctor_0": credit - costs}) and env.ending is Ending.TERMINATED
        assert env.outcome.scores == pytest.approx({"doctor_0": score})
        assert env.outcome.winners == (["doctor_0"] if credit == 1 else []) and not env.outcome.ranks


def test_the_worst_legal_game_costs_less_than_a_forfeit(played):
    questions = [f"ASK: {item}" for item in list(table().items)[:15]]
    tests = [f"TEST: {name}" for name, test in table().tests.items() if test.price == 3][:4]
    env = played(*questions, *tests, "DIAGNOSIS: gout", patient="card")
    assert env.returns == pytest.approx({"doctor_0": -0.33})
    forfeited = played("?", "?", patient="card")
    assert forfeited.returns == {"doctor_0": -1.0} and forfeited.outcome.winners == []
    dear = played("?", "?", patient="card", question_cost=1.0)
    assert dear.returns["doctor_0"] == pytest.approx(-15.18)  # 15 questions and 4 tests of price 3


def test_the_patient_is_paid_the_mean_worth_of_its_answers(played):
    env = played("ASK: cough", "Yes.", "ASK: cough", "Yes, and I have a fever.", "ASK: cough", "No.", RIGHT)
    assert env.returns == pytest.approx({"doctor_0": 1 - 0.03, "patient_0": 0.5})
    assert env.outcome.scores == {"doctor_0": 1.0, "patient_0": 0.5}
    assert env.outcome.winners == ["doctor_0", "patient_0"]
    counts = {"answers": 3, "faithful": 1, "false_claims": 0, "false_denials": 1, "evaded": 0, "volunteered": 1}
    assert env.stats["patient"] == {"turns": 3, **counts}
    assert played(RIGHT).returns == {"doctor_0": 1.0, "patient_0": 0.0}  # it was asked nothing
    env = played("ASK: cough", "Yes.", "ASK: cough", "Yes, and I have a fever.", "ASK: cough", "No.",
                 "ASK: chills", "No.", RIGHT)  # fmt: skip
    assert env.returns["patient_0"] == pytest.approx(0.75)  # by what it has 0.5, by what it has not 1


def test_always_no_and_always_yes_are_worth_what_i_dont_know_is(played):
    for word in ("No.", "Yes.", "I don't know."):
        env = played(
            *(part for item in ("fever", "chills", "rash", "itching") for part in (f"ASK: {item}", word)), RIGHT
        )
        assert env.returns["patient_0"] == 0.5


def test_questions_about_nothing_pay_nothing_but_a_lie_costs_there_too(played):
    assert played("ASK: Do you like jazz?", "Banana.", RIGHT).returns["patient_0"] == 0.0
    asked = ("ASK: fever", "Yes.", "ASK: Do you like jazz?")
    assert played(*asked, "Banana.", RIGHT).returns["patient_0"] == 1.0
    assert played(*asked, "I have chills.", RIGHT).returns["patient_0"] == 0.5
    assert played("ASK: Do you like jazz?", "I have chills.", "ASK: rash", "No.", RIGHT).returns["patient_0"] == 0.5


def test_the_outcome_holds_what_a_study_needs(played):
    env = played("ASK: fever, rash", "TEST: CXR", "DIAGNOSIS: gout; house fever", patient="card")
    assert env.outcome.facts == {
        "condition": "pneumonia", "diagnosis": ["gout", None], "questions": 2, "tests": ["chest x-ray"],
    }  # fmt: skip


# ---- questions, tests, diagnoses -----------------------------------------------------------------------------------


def test_each_item_of_a_question_counts_and_at_most_three_are_asked(played):
    env = played("ASK: Do you have fever, a rash, chills or a headache?", patient="card")
    assert env.questions_left == 12
    assert "Yes, I have a fever. I do not have a rash. I do not have chills." in heard(env)
    assert "headache" not in heard(env)
    env = played("ASK: Do you like jazz?", patient="card")
    assert env.questions_left == 14 and "I can't say anything about that." in heard(env)
    env = played("ASK: fever, rash", patient="card", max_questions=1)
    assert env.questions_left == 0 and "rash" not in heard(env)


def test_two_open_questions_are_answered_and_count_as_three_each(played, game):
    env = played("ASK: What else?", "ASK: Anything else?", "ASK: What else?", patient="card")
    said = [m["content"] for m in env.observe("doctor_0")["messages"][6:] if "patient says" in m["content"]]
    told = [line.split("\n")[1] for line in said]
    assert sorted(told[:2]) == ["> I also have a fever.", "> I also have sputum."]
    assert told[2] == "> I can't say anything about that."  # no third one, so no word on what is not there
    assert env.questions_left == 15 - 3 - 3 - 1 and env.cost == pytest.approx(0.07)
    env = played("ASK: What else?", patient="card", max_questions=2)  # fewer are left than it counts as
    assert env.questions_left == 1 and "can't say anything" in heard(env)
    env = game(CASE | {"symptoms": ["cough"]}, patient="card")
    env.step("ASK: What else?")
    assert "> No, nothing else." in heard(env) and env.facts("doctor_0")["nothing_else"]


def test_a_patient_asked_whether_all_is_well_is_understood(played):
    env = played("ASK: Are you vaccinated?", "Yes.", RIGHT)
    assert env.returns["patient_0"] == 1.0 and env.answers["no vaccination"] is False
    env = played("ASK: Are you vaccinated?", patient="card")
    assert "> Yes, I do not have missing vaccinations." in heard(env) and env.answers["no vaccination"] is False


def test_tests_report_what_the_case_has(played):
    env = played("TEST: CXR", patient="card")
    assert heard(env).startswith("Result of chest x-ray: a white patch in one lung.")
    env.step("TEST: blood count")
    assert heard(env).startswith("Result of blood count: normal.") and env.tests_left == 2
    assert env.facts("doctor_0")["results"] == {"chest x-ray": "consolidation", "blood count": "normal"}


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("I think it is pneumonia.", Cause.UNPARSABLE),
        ("pneumonia", Cause.UNPARSABLE),
        ("ASK:", Cause.UNPARSABLE),
        ("DIAGNOSIS: ;;", Cause.UNPARSABLE),
        ("> TEST: chest x-ray", Cause.UNPARSABLE),  # a quotation
        ("<think>TEST: ecg", Cause.UNPARSABLE),
        ("<think>TEST: ecg</think>", Cause.UNPARSABLE),
        ("ASK: fever\nASK: rash", Cause.AMBIGUOUS),
        ("ASK: fever\nThe patient says: Yes.\nDIAGNOSIS: influenza", Cause.AMBIGUOUS),
        ("TEST: horoscope", Cause.ILLEGAL),
        ("TEST: a chest x-ray please", Cause.ILLEGAL),
        ("DIAGNOSIS: gout; influenza; asthma; pneumonia", Cause.ILLEGAL),
        ("DIAGNOSIS: house fever; swamp fever", Cause.UNPARSABLE),  # no known name is no diagnosis
        ("DIAGNOSIS: ...", Cause.UNPARSABLE),
        ("ASK: " + "fever " * 200, Cause.UNPARSABLE),  # longer than a line may be
        (Reply("I would like to", "length"), Cause.LENGTH),
        (Reply("DIAGNOSIS: 1. pneu", "length"), Cause.LENGTH),  # half a line
        (Reply("ASK: fever", "timeout"), Cause.TIMEOUT),
    ],
)
def test_unusable_lines_are_refused_and_change_nothing(game, reply, cause):
    env = game()
    before = env.facts("doctor_0")
    env.step(reply)
    assert env.last_step.cause is cause and env.attempt("doctor_0") == 1 and env.facts("doctor_0") == before


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("DIAGNOSIS: 1. pneumonia; 2. flu", ["pneumonia", "influenza"]),
        ("diagnosis: pneumonia, influenza", ["pneumonia", "influenza"]),
        ("DIAGNOSIS: 1. pneumonia 2. influenza 3) gout", ["pneumonia", "influenza", "gout"]),
        ("DIAGNOSIS: 1. pneumonia, 2. influenza", ["pneumonia", "influenza"]),
        ("**DIAGNOSIS:** Pneumonia.", ["pneumonia"]),
        ("It coughs.\nDIAGNOSIS:\n1. pneumonia\n2. flu\n\nGood luck!", ["pneumonia", "influenza"]),
        ("DIAGNOSIS: 1. pneumonia\n2. flu", ["pneumonia", "influenza"]),
        ("DIAGNOSIS: covid-19; type 1 diabetes; vitamin B12 deficiency",
         ["covid-19", "type 1 diabetes", "vitamin b12 deficiency"]),
        ("DIAGNOSIS: house fever; pneumonia", [None, "pneumonia"]),
        ("<think>DIAGNOSIS: gout</think>DIAGNOSIS: pneumonia", ["pneumonia"]),
        (Reply("DIAGNOSIS: pneumonia\nBecause", "length"), ["pneumonia"]),
        ("DIAGNOSIS: pneumonia\nDIAGNOSIS: pneumonia", ["pneumonia"]),
        ("DIAGNOSIS: 1.pneumonia; 2.influenza", ["pneumonia", "influenza"]),
        ("DIAGNOSIS: 1: pneumonia; 2: flu", ["pneumonia", "influenza"]),
        ("DIAGNOSIS: (pneumonia)", ["pneumonia"]),
        ("DIAGNOSIS: 1. pneumonia - 60%; 2. flu: 30 %", ["pneumonia", "influenza"]),
        ("DIAGNOSIS: 1. pneumonia; 2. flu; 3. gout\n\n- a fever\n- a cough", ["pneumonia", "influenza", "gout"]),
        ("DIAGNOSIS: 1. pneumonia\n\n1. It has a fever.", ["pneumonia"]),
        ("DIAGNOSIS:\n\n1. pneumonia", ["pneumonia"]),
        ("* DIAGNOSIS: pneumonia\n* DIAGNOSIS: pneumonia", ["pneumonia"]),  # the second is no entry of the first
    ],
)  # fmt: skip
def test_diagnoses_are_read(played, reply, found):
    env = played(reply)
    assert env.over and env.last_step.action == {"diagnosis": found}


@pytest.mark.parametrize(
    "reply",
    [
        "*DIAGNOSIS:flu\n" * 8000,  # each is a line of the protocol and an entry of the list above it
        "*DIAGNOSIS:\n" * 8000,
        "".join(f"ASK:{number}\n" for number in range(20_000)),
        "DIAGNOSIS: " + "1. " * 60_000,
    ],
)
def test_long_replies_are_read_in_linear_time(reply):
    begun = time.process_time()
    with contextlib.suppress(IllegalReply):
        read_protocol(Reply(reply), tested=True)
    assert time.process_time() - begun < 2  # the quadratic reader took over 20 s for the first


def test_naming_a_condition_twice_takes_the_better_place(played):
    assert played("DIAGNOSIS: pneumonia; chest infection; flu").outcome.scores["doctor_0"] == 1.0


def test_budgets_are_kept(played):
    env = played("ASK: fever", patient="card", max_questions=1, max_tests=1, retries=0, illegal="skip")
    env.step("TEST: ecg")
    assert not env.over and heard(env).endswith(
        "Questions left: 0. Tests left: 0. Reply with one line: DIAGNOSIS: 1. ..."
    )
    env.step("TEST: lipase")  # refused, and no question is left to lose
    assert env.over and env.outcome.reason == "no answer: no diagnosis"
    assert env.returns["doctor_0"] == pytest.approx(-0.025)
    env = played("TEST: ecg", "TEST: ECG", patient="card")
    assert env.last_step.cause is Cause.ILLEGAL and "was done already" in heard(env)
    env = played("ASK: fever", patient="card", max_questions=0)
    assert env.last_step.cause is Cause.ILLEGAL


def test_without_tests_the_doctor_hears_nothing_of_them_and_sees_how_a_diagnosis_is_given(played):
    env = played("ASK: fever", "Hm.", "ASK: cough", "ASK: sputum", patient="card", max_tests=0, max_questions=2)
    assert "You have no questions left: DIAGNOSIS." in heard(env)
    said = [message["content"] for message in env.observe("doctor_0")["messages"]]
    assert any("begins with ASK: or DIAGNOSIS:" in text for text in said)
    assert not [text for text in said if "TEST" in text or "ests left" in text or "a test" in text]
    assert "A question costs 0.01. The right condition" in said[0]
    assert any("left: 1. Reply with" in text for text in said)
    assert read_protocol(Reply(said[4]), tested=False) == ("DIAGNOSIS", "tension headache")
    env.step("TEST: ecg")
    assert env.last_step.cause is Cause.ILLEGAL
    assert "TEST: blood count" in [
        message["content"] for message in played(patient="card").observe("doctor_0")["messages"]
    ]


# ---- bad replies ---------------------------------------------------------------------------------------------------


def test_a_doctors_forfeit_leaves_the_patient_its_pay(played):
    env = played("ASK: cough", "Yes.", "?", "?")
    assert env.returns == {"doctor_0": -1.0, "patient_0": 1.0} and env.outcome.winners == []
    assert env.outcome.reason == "forfeit: doctor_0 gave unparsable reply"


def test_a_patient_that_forfeits_leaves_and_its_card_answers(played):
    env = played("ASK: fever", " ", "x" * 601)
    assert env.returns["patient_0"] == -1.0 and env.terminations["patient_0"]
    assert "> Yes, I have a fever." in heard(env) and not env.over
    env.step(None)
    assert env.agent_selection == "doctor_0" and "patient_0" not in env.agents
    env.step("ASK: rash")
    assert "> No, I do not have a rash." in heard(env)
    env.step(RIGHT)
    assert env.outcome.reason == "right at rank 1: pneumonia"
    assert env.returns == pytest.approx({"doctor_0": 0.98, "patient_0": -1.0})
    assert env.outcome.winners == ["doctor_0"]


def test_what_a_patient_earned_is_lost_with_its_forfeit(played, game):
    env = game()
    for reply in ("ASK: cough", "Yes.", "ASK: fever", "", ""):
        env.step(reply)
    env.step(None)
    env.step(RIGHT)
    assert env.returns["patient_0"] == -1.0 and env.outcome.scores["patient_0"] == 1.0


def test_skipping_costs_the_doctor_a_question_and_is_no_answer_of_the_patient(played):
    env = played("?", illegal="skip", retries=0)
    assert env.questions_left == 14 and env.agent_selection == "doctor_0"
    for reply in ("ASK: cough", "", "ASK: cough", "Yes.", RIGHT):
        env.step(reply)
    assert env.returns == pytest.approx({"doctor_0": 1 - 0.03, "patient_0": 0.5})


@pytest.mark.parametrize("illegal", ["forfeit", "skip", "random_legal", "penalty"])
@pytest.mark.parametrize("patient", ["seat", "card"])
def test_no_rule_and_no_bad_reply_escapes_an_end(illegal, patient):
    for seed in range(15):
        env = llm_arena.make(
            "doctor-patient-v0", illegal=illegal, patient=patient, max_questions=3, max_tests=2, retries=2
        )
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        play_out(env, rng, lambda copy, seat, rng=rng: "" if rng.random() < 0.6 else copy.sample_reply(seat, rng))
        assert env.ending is Ending.TERMINATED and env.outcome.reason


def test_a_context_overflow_costs_its_seat_alone(played):
    for seat, returns in [("doctor_0", {"doctor_0": -1.0, "patient_0": 1.0}), ("patient_0", {"patient_0": -1.0})]:
        env = played("ASK: cough", "Yes.", overflow="forfeit")
        env.truncate(Ending.CONTEXT_OVERFLOW, seat)
        assert env.returns == {"doctor_0": 0.0, "patient_0": 0.0} | returns
        assert "has left" not in env.transcript("doctor_0")  # nobody goes on without it
    env = played("ASK: cough")
    env.truncate(Ending.CONTEXT_OVERFLOW, "patient_0")
    assert set(env.returns.values()) == {0.0}


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"patient": "both"}, "patient='both'; expected seat or card"),
        ({"names": "some"}, "names='some'; expected listed or open"),
        ({"max_questions": -1}, "max_questions=-1; expected a whole number from 0 to 100"),
        ({"max_tests": 41}, "max_tests=41"),
        ({"ranked": 0}, "ranked=0"),
        ({"ranked": True}, "ranked=True"),
        ({"question_cost": -0.1}, "question_cost=-0.1; expected a number from 0 to 1000"),
        ({"test_cost": float("nan")}, "test_cost=nan"),
        ({"question_cost": 10**400}, "question_cost=1000000"),
        ({"question_cost": 1e308}, "question_cost=1e+308; expected a number from 0 to 1000"),
        ({"test_cost": True}, "test_cost=True; expected a number"),
        ({"condition": "lupus", "split_by": "condition"}, "is not in split='train' by condition"),
        ({"split_by": "name"}, "split_by='name'; expected case or condition"),
        ({"condition": "house fever"}, "not in the table of conditions"),
        ({"split": "test"}, "split='test'"),
        ({"cases": "/nowhere.jsonl"}, "can't be read"),
        ({"max_turns": 5}, "max_turns=5; expected at least 35"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        llm_arena.make("doctor-patient-v0", **kwargs)


@pytest.mark.parametrize("name", ["condition", "split", "patient", "names", "max_tests", "split_by"])
def test_messages_are_short_and_of_one_line(name):
    with pytest.raises(UsageError) as caught:
        llm_arena.make("doctor-patient-v0", **{name: "x\n" * 50_000})
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_the_spec_holds_the_file_and_its_hash(game, tmp_path):
    env = game()
    digest = env.spec.kwargs["cases_sha256"]
    assert len(digest) == 64 and llm_arena.make(env.spec).spec == env.spec
    (tmp_path / "cases.jsonl").write_text(json.dumps(CASE | {"age": 35}), "utf-8")
    with pytest.raises(UsageError, match=f"expected {digest}: it has changed"):
        llm_arena.make(env.spec)


def test_check_env_with_unusual_arguments(game):
    check_env(game(CASE, CASE | {"condition": "influenza", "findings": {}}, CASE | {"age": 35}))
    check_env(llm_arena.make("doctor-patient-v0", patient="card", names="open", ranked=1, split="heldout"))
