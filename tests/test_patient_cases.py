"""The table of conditions, the patients drawn from it or read from a file, and the rules that read what is said."""

import json

import numpy as np
import pytest

from llm_arena.errors import UsageError
from llm_arena.problems.doctor_patient import talk as patient_talk
from llm_arena.problems.doctor_patient.cases import (
    FileCases,
    Opening,
    TableCases,
    finding_chances,
    item_chances,
    open_cases,
    opening_chances,
    read_cases,
    split_of,
)
from llm_arena.problems.doctor_patient.conditions import (
    FALSE_FINDING,
    FOUND,
    NOISE,
    TYPICAL,
    condition_names,
    find_condition,
    find_test,
    normal_name,
    table,
)

LINE = {
    "condition": "flu",
    "age": 34,
    "sex": "female",
    "complaint": "fever",
    "symptoms": ["fever", "coughing blood"],
    "history": ["sick contact"],
    "findings": {"throat or nose swab": "influenza"},
}


def drawn(seed, **kwargs):
    rng, source = np.random.default_rng(seed), TableCases(**kwargs)
    return source.deal(rng, source.open(rng))


@pytest.fixture(scope="module")
def five_thousand():
    return [drawn(seed) for seed in range(5000)]


# ---- the table -----------------------------------------------------------------------------------------------------


def test_the_table_is_as_large_as_promised():
    known = table()
    assert len(known.conditions) >= 60 and 25 <= len(known.tests) <= 45
    for row in known.conditions.values():
        assert len(row.symptoms) >= 3 and row.alike and row.name not in row.alike
        assert all(row.name in known.conditions[other].alike for other in row.alike)
        assert row.weight > 0 and 0 <= row.ages[0] < row.ages[1] <= 100 and 0 <= row.female <= 1


def test_a_chance_is_the_files_for_typical_patients_else_the_noise():
    known = table()
    assert known.chance("influenza", "fever") == pytest.approx(0.92 * TYPICAL)
    assert known.chance("influenza", "spinning") == NOISE
    assert known.chance("influenza", "sick contact") == 0.5  # history is as in the file
    assert known.chance("influenza", "smoking") == 0.2  # as in the population
    assert known.chance("measles", "rash") == 1.0  # there is none without
    column = list(known.items).index("painful periods")
    for sex, age, may in [("male", 30, False), ("female", 30, True), ("female", 8, False), ("female", 70, False)]:
        assert (item_chances(sex, age)[:, column] > 0).all() == may == known.possible("painful periods", sex, age)


def test_the_definition_of_an_illness_is_always_there(five_thousand):
    for condition, item in [("epilepsy", "seizure"), ("testicular torsion", "testicular pain"), ("measles", "rash"),
                            ("depression", "low mood")]:  # fmt: skip
        ill = [case for case in five_thousand if case.condition == condition]
        assert len(ill) > 10 and all(case.card.has(item) for case in ill)


def test_the_results_of_a_test_add_up_to_one():
    for test in table().tests:
        chances = finding_chances(test, "female", 30)
        assert chances.shape == (len(table().conditions), len(table().tests[test].findings) + 1)
        assert np.allclose(chances.sum(axis=1), 1) and (chances >= 0).all()
    row = table().findings("pneumonia", "chest x-ray")
    assert row["consolidation"] == pytest.approx(0.92 * FOUND)
    assert sum(row.values()) == pytest.approx(0.92 * FOUND + FALSE_FINDING)
    for sex, age in [("male", 30), ("female", 9), ("female", 70)]:
        assert finding_chances("pregnancy test", sex, age).tolist() == [[0.0, 1.0]] * len(table().conditions)


def test_no_name_means_two_conditions_nor_two_tests():
    known = table()
    for rows in (known.conditions, known.tests):
        owners = {}
        for row in rows.values():
            for alias in row.aliases:
                assert owners.setdefault(normal_name(alias), row.name) == row.name, alias
    assert all(find_condition(alias) == row.name for row in known.conditions.values() for alias in row.aliases)
    assert all(find_test(alias) == row.name for row in known.tests.values() for alias in row.aliases)


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ("Pneumonia", "pneumonia"),
        ("  community-acquired PNEUMONIA. ", "pneumonia"),
        ("the flu", "influenza"),
        ("Influenza (seasonal)", "influenza"),
        ("Crohn\u2019s disease", "crohn's disease"),
        ("iron-deficiency anemia", "iron deficiency anaemia"),
        ("Celiac disease", "coeliac disease"),
        ("M\u00e9ningitis", "meningitis"),
        ("COPD", "chronic obstructive pulmonary disease"),
        ("generalized anxiety", "generalised anxiety"),
        ("Hashimoto's thyroiditis", "underactive thyroid"),
        ("lung tumor", "lung cancer"),
        ("iron deficiency an\u00e6mia", "iron deficiency anaemia"),
        ("pneumonia or bronchitis", None),
        ("not pneumonia", None),
        ("severe pneumonia", None),
        ("", None),
        ("pneumoni", None),
    ],
)
def test_names_are_read_strictly(given, condition):
    assert find_condition(given) == condition


@pytest.mark.parametrize(
    ("given", "test"),
    [("CT of the head", "ct scan"), ("chest CT", "ct scan"), ("flu test", "throat or nose swab"),
     ("brain MRI", "mri scan"), ("hand x-ray", "joint x-ray"), ("x-ray", None)],
)  # fmt: skip
def test_tests_are_found_by_their_everyday_names(given, test):
    assert find_test(given) == test


def test_no_word_means_two_items():
    items = table().items.values()
    found = {}
    for item in items:
        for alias in item.aliases:
            words = tuple(patient_talk._words(alias))
            assert found.setdefault(words, item.name) == item.name, (alias, found[words], item.name)


# ---- drawn patients ------------------------------------------------------------------------------------------------


def test_seeds_give_thousands_of_patients_with_every_condition(five_thousand):
    assert len(set(map(repr, five_thousand))) > 4900
    assert {case.condition for case in five_thousand} == set(table().conditions)


def test_patients_are_possible(five_thousand):
    known = table()
    for case in five_thousand:
        row = known.conditions[case.condition]
        assert row.ages[0] <= case.age <= row.ages[1] and case.complaint in case.symptoms
        assert case.sex == "female" or row.female < 1
        assert case.sex == "male" or row.female > 0
        keys = [*case.symptoms, *case.history, *case.findings, *(f"{t}/{f}" for t, f in case.findings.items())]
        assert all(known.possible(key, case.sex, case.age) for key in keys), case
        assert all(known.implies[item] in case.symptoms for item in case.symptoms if item in known.implies)


def test_patients_follow_the_table(five_thousand):
    ill = [case for case in five_thousand if case.condition == "influenza"]
    assert len(ill) == pytest.approx(5000 * 3 / sum(row.weight for row in table().conditions.values()), rel=0.3)
    cough = np.mean([case.card.has("cough") for case in ill if case.complaint != "cough"])
    swab = np.mean([case.findings.get("throat or nose swab") == "influenza" for case in ill])
    assert cough == pytest.approx(0.8 * TYPICAL, abs=0.12) and swab == pytest.approx(0.88 * FOUND, abs=0.12)


def test_drawing_in_two_steps_is_drawing_at_once(five_thousand):
    # of those who come with a cough, each condition has the share that its joint chances give it
    coughs = [case for case in five_thousand if case.complaint == "cough"]
    expected = sum(opening_chances(case.opening) / opening_chances(case.opening).sum() for case in coughs)
    names = list(table().conditions)
    for name in ("acute bronchitis", "pneumonia", "common cold", "asthma"):
        seen = sum(case.condition == name for case in coughs)
        assert abs(seen - expected[names.index(name)]) < 4 * np.sqrt(expected[names.index(name)])


def test_one_opening_has_patients_with_several_conditions():
    rng, source = np.random.default_rng(0), TableCases()
    opening = Opening(40, "female", "headache")
    dealt = [source.deal(rng, opening) for _ in range(60)]
    assert all(case.opening == opening for case in dealt) and len({case.condition for case in dealt}) > 5


def test_splits_are_by_the_case_and_have_all_conditions():
    train = [drawn(seed) for seed in range(300)]
    heldout = [drawn(seed, split="heldout") for seed in range(1500)]
    assert {split_of(case) for case in train} == {"train"} and {split_of(case) for case in heldout} == {"heldout"}
    assert {case.condition for case in heldout} == set(table().conditions)


def test_splits_by_condition_share_no_condition():
    cases = {side: [drawn(seed, split=side, by="condition") for seed in range(2000)] for side in ("train", "heldout")}
    seen = {side: {case.condition for case in drawn_ones} for side, drawn_ones in cases.items()}
    assert not seen["train"] & seen["heldout"] and seen["train"] | seen["heldout"] == set(table().conditions)
    assert 12 <= len(seen["heldout"]) <= 24
    assert {split_of(case) for case in cases["train"]} == {"train", "heldout"}  # nothing else is held back


def test_children_have_no_history_of_adults(five_thousand):
    adult = {"smoking", "heavy drinking", "unprotected sex", "contraceptive pill", "heavy periods", "missed period"}
    young = [case for case in five_thousand if case.age < 11]
    assert len(young) > 100
    for case in young:
        assert not adult & {*case.symptoms, *case.history} and "pregnancy test" not in case.findings


def test_a_condition_can_be_fixed_by_any_name():
    assert {drawn(seed, condition="Flu").condition for seed in range(50)} == {"influenza"}
    with pytest.raises(UsageError, match=r'condition=.influensa. is not in the table.*Did you mean "influenza"'):
        TableCases(condition="influensa")
    with pytest.raises(UsageError, match="split='test'; expected train or heldout"):
        TableCases(split="test")


# ---- files ---------------------------------------------------------------------------------------------------------


def written(tmp_path, *lines):
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return str(path)


def test_a_file_is_read_and_completed(tmp_path):
    path = written(tmp_path, LINE, "", LINE | {"condition": "covid", "findings": {}})
    (case, other), digest = read_cases(path)
    assert case.condition == "influenza" and other.condition == "covid-19" and len(digest) == 64
    assert case.symptoms == ("fever", "cough", "coughing blood")  # in the table's order, with what it implies
    rng, source = np.random.default_rng(0), FileCases([case, other])
    assert {source.deal(rng, source.open(rng)).condition for _ in range(20)} == {"influenza", "covid-19"}


def test_a_file_that_was_written_again_is_read_again(tmp_path):
    path = written(tmp_path, LINE)
    _, before = read_cases(path)
    written(tmp_path, LINE, LINE | {"age": 35})
    rows, after = read_cases(path)
    assert len(rows) == 2 and before != after
    with pytest.raises(UsageError, match=f"has SHA-256 {after}, expected {before}: it has changed"):
        open_cases("train", None, path, before)
    assert open_cases("train", None, path, None)[1] == after


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"condition": "pneumonai"}, "Did you mean"),
        ({"condition": 3}, "condition is 3"),
        ({"age": "34"}, "age is '34'"),
        ({"age": True}, "age is True"),
        ({"age": -1}, "age is -1"),
        ({"sex": "f"}, "sex is 'f'; expected female or male"),
        ({"complaint": "spinning"}, "complaint is 'spinning'; expected one of its symptoms"),
        ({"complaint": ["fever"]}, "complaint is"),
        ({"symptoms": "fever"}, "symptoms is 'fever'; expected a list of names"),
        ({"symptoms": ["fever", "fevr"]}, "symptoms has 'fevr'.*Did you mean"),
        ({"symptoms": ["fever", "testicular pain"]}, "a female patient of 34 can't have 'testicular pain'"),
        ({"history": ["fever"]}, "history has 'fever'"),
        ({"age": 8, "history": ["smoking"]}, "a female patient of 8 can't have 'smoking'"),
        ({"a\nb": 1}, r"'a\\nb'; expected an object"),
        ({"findings": ["x"]}, "findings is"),
        ({"findings": {"x-ray": "mass"}}, "there is no test 'x-ray'"),
        ({"findings": {"chest x-ray": "nothing"}}, "chest x-ray reports 'nothing'; expected one of consolidation"),
        ({"findings": {"chest x-ray": ["mass"]}}, "chest x-ray reports"),
        ({"findings": {"ultrasound": "prostate"}}, "can't report prostate for a female patient of 34"),
        ({"note": "?"}, "exactly condition, age"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, change, says):
    with pytest.raises(UsageError, match=f"cases.jsonl:2: .*{says}"):
        read_cases(written(tmp_path, LINE, LINE | change))


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"condition": "flu"}', "[" * 100_000])
def test_a_line_that_is_no_case_is_refused(tmp_path, line):
    with pytest.raises(UsageError, match="cases.jsonl:1: "):
        read_cases(written(tmp_path, line))


def test_files_that_cannot_be_read_say_so(tmp_path):
    with pytest.raises(UsageError, match="can't be read"):
        read_cases(str(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match="has no cases"):
        read_cases(written(tmp_path, "", " "))
    (tmp_path / "latin.jsonl").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="can't be read"):
        read_cases(str(tmp_path / "latin.jsonl"))
    with pytest.raises(UsageError, match="is for a file of cases"):
        open_cases("train", None, None, "0" * 64)
    with pytest.raises(UsageError, match="are for the table"):
        open_cases("heldout", None, written(tmp_path, LINE), None)


def test_line_separators_of_unicode_are_no_lines(tmp_path):  # PrimeIntellect-ai/verifiers PR #1644
    path = tmp_path / "cases.jsonl"
    path.write_text("\ufeff" + json.dumps(LINE) + "\u2028\n" + json.dumps(LINE), "utf-8")
    with pytest.raises(UsageError, match="cases.jsonl:1: no JSON"):  # one line, and not two
        read_cases(str(path))


def test_the_arrays_are_in_the_tables_order():
    known = table()
    row, column = list(known.conditions).index("influenza"), list(known.items).index("fever")
    assert item_chances("male", 40)[row, column] == known.chance("influenza", "fever")
    assert set(condition_names().values()) == set(known.conditions)
