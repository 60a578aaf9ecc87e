"""The table of twenty-questions-v0: its things, what is understood and answered, and players that go by it."""

import re

import numpy as np
import pytest

import llm_arena
from llm_arena.problems.deduction.things import (
    phrasings,
    property_of,
    questions,
    secrets,
    table,
    truth,
    unclear,
)
from llm_arena.problems.deduction.things_data import SECRETS
from twenty_questions_parts import play

# ---- the table -----------------------------------------------------------------------------------------------------


def test_the_table_has_500_things_no_two_of_which_are_alike():
    rows = table()
    assert len(rows) == 500 and len(questions()) >= 45
    assert len(set(rows.values())) == 500  # identical rows: none
    assert all(row for row in rows.values()) and all(row <= questions().keys() for row in rows.values())
    used = {key for row in rows.values() for key in row}
    assert used == questions().keys()
    assert len({name.casefold().removesuffix("s") for name in rows}) == 500  # guesses tell them apart


def test_every_word_of_the_table_is_a_property():
    words = re.findall(r"[a-z]+", " ".join(re.sub(r"[^;:\n]+:", "", SECRETS).replace("-", " ").split()))
    assert set(words) <= questions().keys()
    assert not any(table()[name] & unclear()[name] for name in table())


def test_the_splits_are_disjoint_and_cover_the_table():
    parts = secrets()
    assert len(parts["heldout"]) == 100 and len(parts["train"]) == 400
    assert {*parts["heldout"], *parts["train"]} == set(table()) == set(parts["all"])


@pytest.mark.parametrize(
    ("secret", "true", "false"),
    [
        ("piano", "made instrument sound wood strings keys big", "animal hand blown food"),
        ("penguin", "animal bird water antarctic partblack partwhite", "flies mammal fish fur arctic"),
        ("bat", "animal mammal flies fur night", "bird four"),
        ("whale", "animal mammal big water", "fish fur four"),
        ("tomato", "food vegetable red round hand", "fruit made"),
        ("lemon", "food fruit sour yellow citrus", "sweet animal"),
        ("spider", "animal hunts", "insect mammal flies"),
        ("coffee", "drink liquid warm made black", "food alcohol"),
        ("sun", "nature space big round light", "made animal"),
        ("chess", "sport board", "ball team"),
        ("heart", "body inside", "pair face"),
        ("ambulance", "vehicle wheels engine rescue big made", "flies rails"),
        ("ostrich", "bird big savanna", "flies"),
        ("peanut", "food nut root shell", "fruit"),
    ],
)
def test_facts_of_the_table(secret, true, false):
    row = table()[secret]
    assert set(true.split()) <= row and not set(false.split()) & row


def test_what_can_not_be_both_is_not():
    kinds = (
        "animal",
        "plant",
        "food",
        "drink",
        "instrument",
        "furniture",
        "building",
        "nature",
        "person",
        "sport",
        "body",
    )
    for name, row in table().items():
        assert sum(kind in row for kind in kinds) <= 1, name
        assert sum(kind in row for kind in ("mammal", "bird", "fish", "insect", "reptile")) <= ("animal" in row), name
        assert not {"big", "hand"} <= row, name
        for part, whole in (("fur", "animal body worn"), ("citrus", "fruit"), ("fruit", "food"), ("alcohol", "drink"),
                            ("rails", "vehicle"), ("engine", "made"), ("tree", "plant"), ("strings", "made"),
                            ("law", "person"), ("ball", "sport"), ("inside", "body"), ("pet", "animal")):  # fmt: skip
            assert part not in row or set(whole.split()) & row, (name, part)


def test_every_question_of_the_table_is_understood_as_itself():
    for key, question in questions().items():
        assert property_of(question) == key and property_of(question.upper().rstrip("?")) == key


@pytest.mark.parametrize(
    ("question", "key"),
    [
        ("Is it an animal?", "animal"),
        ("Is it usually an animal?", "animal"),
        ("animal?", "animal"),
        ("Can you eat it?", "edible"),
        ("Is it edible", "edible"),
        ("Is the secret a kind of fruit?", "fruit"),
        ("Does it eat people?", None),
        ("Is a person bigger than it?", None),
        ("Does it sit on people?", None),
        ("Does it drink people?", None),
        ("Is it on a tree?", None),
        ("Is it in a building?", None),
        ("Is it for a pet?", None),
        ("Is it a metal?", None),
        ("Orange?", None),
        ("Is it an animal \u043d\u0435?", None),
        ("Is it orange?", "orange"),
        ("Is it man-made?", "made"),
        ("Does it have wheels?", "wheels"),
        ("Is it an orange?", None),
        ("Is it a fly?", None),
        ("Is it a ball?", None),
        ("Does it eat?", None),
        ("Is it not an animal?", None),
        ("Is it an animal or a plant?", None),
        ("Is it a wild animal?", None),
        ("Is it alive?", None),
        ("", None),
        ("Is it?", None),
    ],
)
def test_only_what_is_meant_is_understood(question, key):
    assert property_of(question) == key


YES = {
    "Does it have antlers?": "deer, reindeer",
    "Is it a reptile?": "python, cobra, crocodile, lizard, chameleon, sea turtle, tortoise, dinosaur",
    "Is it an amphibian?": "frog",
    "Does it have stripes?": "tiger, zebra, raccoon, skunk, bee, wasp",
    "Is it spotted?": "leopard, cheetah, giraffe, hyena, ladybug",
    "Is it found in the Arctic?": "polar bear, reindeer, walrus, igloo, glacier",
    "Is it found in the Antarctic?": "penguin, glacier",
    "Can it sting?": "jellyfish, bee, wasp, scorpion",
    "Is it a nut?": "walnut, peanut, almond",
    "Is it purple?": "plum, eggplant",
    "Is it usually made of leather?": "shoes, boots, belt, wallet",
    "Is it worn on your head?": "hat, crown, helmet, headphones",
    "Is it worn around the neck?": "scarf, necktie, bow tie, necklace",
    "Is it worn on the feet?": "socks, tights, shoes, boots, slippers",
    "Is it worn on the legs?": "skirt, jeans, shorts, tights",
    "Is it made of flour?": "bread, toast, bagel, croissant, pretzel, cake, cookie, apple pie, donut, pancake, pizza, "
    "spaghetti, lasagna",
    "Is it a game?": "soccer, basketball, volleyball, baseball, ice hockey, tennis, badminton, table tennis, golf, "
    "bowling, water polo, chess, poker",
    "Is it a winter sport?": "ice hockey, skiing, figure skating",
    "Is it an alcoholic drink?": "beer, red wine, champagne, whiskey",
    "Is it a celestial body?": "sun, moon, star, comet",
    "Is it dairy?": "milk, cheese, butter, yogurt, ice cream, whipped cream",
    "Do people sleep in it or on it?": "bed, hammock, mattress, pillow",
    "Is it jewellery?": "ring, necklace, earrings, crown",
    "Is it a card game?": "poker",
    "Does it have a keyboard?": "piano, accordion, church organ, computer",
    "Is it extinct?": "mammoth, dodo, dinosaur",
    "Is it a hard part of the body?": "tooth, bone",
    "Does it run on tracks?": "train, tram",
}
"""All that a question, asked in words that are listed, is answered yes for; written down apart from the table."""


@pytest.mark.parametrize(("question", "names"), YES.items())
def test_a_phrasing_is_true_of_no_more_than_it_says(question, names):
    expected = set(names.split(", "))
    assert expected <= table().keys()
    assert {name for name in table() if truth(name, question)} == expected


@pytest.mark.parametrize(
    ("secret", "question", "right"),
    [
        ("mushroom", "Is it a vegetable?", True),
        ("monkey", "Does it walk on four legs?", True),
        ("gorilla", "Does it walk on four legs?", True),
        ("canoe", "Is it bigger than a person?", True),
        ("rowboat", "Is it bigger than a person?", True),
        ("bee", "Is it usually black, at least in part?", True),
        ("bee", "Is it black?", None),
        ("crow", "Is it usually black, at least in part?", True),
        ("pillow", "Do people sleep on it or in it?", True),
        ("lasagna", "Is it made of meat?", None),
        ("lasagna", "Does it contain meat?", True),
        ("blueberry", "Is it round like a ball?", True),
        ("grape", "Is it round like a ball?", None),
        ("rice", "Is it made of flour?", False),
        ("beer", "Is it made of flour?", False),
        ("jeans", "Is it blue?", True),
        ("jeans", "Is it purple?", False),
        ("fork", "Is it a kitchen appliance?", None),
        ("hospital", "Is it an emergency vehicle?", None),
        ("lobster", "Do people eat it?", True),
        ("lobster", "Is it a food?", False),
        ("ice hockey", "Is it done on snow or ice?", True),
        ("tomato", "Is it a fruit?", None),
        ("ring", "Is it clothing?", False),
        ("hammer", "Is it a hard part of the body?", False),
        ("doctor", "Is it an animal?", None),
        ("water", "Is it a part of nature that is not alive?", None),
    ],
)
def test_what_is_answered_about_a_secret(secret, question, right):
    assert truth(secret, question) is right


def test_every_listed_phrasing_is_understood_and_no_two_are_alike():
    every = [(key, phrasing) for key, listed in phrasings().items() for phrasing in listed]
    assert len({phrasing for _, phrasing in every}) == len(every)
    for key, phrasing in every:
        assert property_of(phrasing) == property_of(phrasing.upper() + "?") == key
        # no phrasing asks for one half of the question; some are names for both halves
        if re.search(r"\bor\b", questions()[key]) and not re.search(r"\bor\b", phrasing):
            assert (key, phrasing) in HALVES, (key, phrasing)


HALVES = {
    (key, phrasing)
    for key, listed in {
        "dairy": ["dairy product", "is it dairy"],
        "grain": ["is it made from grain"],
        "stone": ["does it have a pit"],
        "struck": ["percussion instrument"],
        "floats": ["watercraft"],
        "snow": ["winter sport"],
        "pool": ["water sport"],
        "sense": ["sense organ"],
    }.items()
    for phrasing in listed
}
"""Names of what a question with an `or` asks for as a whole."""


# ---- the scripted players ------------------------------------------------------------------------------------------


def mean_and_half(values):
    return np.mean(values), 1.96 * np.std(values) / np.sqrt(len(values))


def test_entropy_finds_every_secret_and_random_questions_do_not():
    env = llm_arena.make("twenty-questions-v0", answerers=0)
    found = [play(env, seed, env.baselines["entropy"]).returns["guesser_0"] for seed in range(60)]
    lucky = [play(env, seed).returns["guesser_0"] for seed in range(60)]
    gain, half = mean_and_half(np.array(found) - lucky)
    assert min(found) > 0 and gain - half > 0.5
    assert np.mean(found) > 0.7  # about ten turns


def test_table_answers_truly_and_random_answers_do_not():
    env = llm_arena.make("twenty-questions-v0", split="heldout")
    entropy, true = env.baselines["entropy"], env.baselines["table"]
    paid = [play(env, seed, entropy, true).returns["answerer_0"] for seed in range(30)]
    luck = [play(env, seed, entropy).returns["answerer_0"] for seed in range(30)]
    gain, half = mean_and_half(np.array(paid) - luck)
    # nothing to check in a game whose few questions all have no clear answer
    assert set(paid) <= {0.0, 1.0} and paid.count(0.0) <= 2 and gain - half > 0


def test_entropy_survives_lies():
    env = llm_arena.make("twenty-questions-v0")
    lies = {}

    def lies_once(view, rng):
        said = env.baselines["table"](view, rng)
        lies[env.episode_seed] = lies.get(env.episode_seed, 0) + (said != "ANSWER: unknown")
        return (
            {"ANSWER: yes": "ANSWER: no", "ANSWER: no": "ANSWER: yes"}.get(said, said)
            if lies[env.episode_seed] == 3
            else said
        )

    found = [play(env, seed, env.baselines["entropy"], lies_once).returns["guesser_0"] > 0 for seed in range(24)]
    lucky = [play(env, seed, None, env.baselines["table"]).returns["guesser_0"] > 0 for seed in range(24)]
    gain, half = mean_and_half(np.array(found, float) - np.array(lucky, float))
    assert gain - half > 0  # one lie of about ten answers leaves it better than chance
    for seed in range(5):
        play(env, seed, env.baselines["entropy"], lambda view, rng: "ANSWER: no")
        asked = [text for kind, text, _ in env.log if kind == "ASK"]
        assert len(set(asked)) == len(asked) and env.used <= 20


def test_the_turn_limit_leaves_room_for_a_whole_game():
    assert llm_arena.make("twenty-questions-v0").max_turns == 40
    assert llm_arena.make("twenty-questions-v0", retries=2).max_turns == 40
    assert llm_arena.make("twenty-questions-v0", max_turns=7).max_turns == 7
