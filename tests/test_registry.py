import warnings

import pettingzoo
import pytest

import llm_arena
from llm_arena.env import ArenaEnv
from llm_arena.errors import (
    DeprecatedEnv,
    EnvContractError,
    NameNotFound,
    NamespaceNotFound,
    UnknownName,
    UsageError,
    VersionNotFound,
)
from llm_arena.registry import env_class
from llm_arena.types import EnvSpec, Move, Outcome


class Wait(ArenaEnv):
    """A game that ends at once."""

    id = "test-wait-v2"
    roles = {"player": 1}

    def __init__(self, *, word="ok", **options):
        super().__init__(**options)
        self.word = word

    def begin(self, rng):
        return "player_0"

    def resolve(self, seat, reply):
        return Move(outcome=Outcome(reason=self.word))


@pytest.fixture
def registered():
    yield llm_arena.register("test-wait-v2", Wait, kwargs={"word": "default"})
    del llm_arena.registry.entries["test-wait-v2"]
    del pettingzoo.aec_registry["llm_arena/test-wait-v2"]


def test_the_shelf_is_listed_without_importing_it():
    import subprocess
    import sys

    code = (
        "import sys, llm_arena; print(*llm_arena.registry); print([m for m in sys.modules if 'llm_arena.envs.' in m])"
    )
    listed, imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"kuhn-poker-v0", "tic-tac-toe-v0", "naming-v0"} <= set(listed.split())
    assert imported == "[]"


def test_every_id_is_in_pettingzoos_registry_too():
    for env_id in llm_arena.registry:
        made = pettingzoo.make("aec", f"llm_arena/{env_id}")
        assert made.spec.id == env_id


def test_make_sets_a_spec_that_makes_the_env_again():
    env = llm_arena.make("tic-tac-toe-v0", retries=2)
    assert env.spec.kwargs["retries"] == 2
    again = llm_arena.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    assert llm_arena.make(env.spec, retries=1).retries == 1


def test_registered_defaults_are_overlaid_and_not_shared(registered):
    assert llm_arena.make("test-wait-v2").word == "default"
    assert llm_arena.make("test-wait-v2", word="mine").word == "mine"
    assert llm_arena.spec("test-wait-v2") == EnvSpec(id="test-wait-v2", kwargs={"word": "default"})
    assert env_class("test-wait-v2") is Wait


def test_an_id_without_version_is_the_newest_with_a_warning(registered):
    with pytest.warns(UserWarning, match="test-wait-v2, is taken"):
        assert llm_arena.make("test-wait").spec.id == "test-wait-v2"


@pytest.mark.parametrize(
    ("env_id", "error", "words"),
    [
        ("namng-v0", NameNotFound, 'Did you mean "naming-v0"'),
        ("kuhn_poker-v0", NameNotFound, 'Did you mean "kuhn-poker-v0"'),
        ("zzz-v0", NameNotFound, "llm-arena list"),
        ("", NameNotFound, "expected name-vN"),
        ("a b", NameNotFound, "expected name-vN"),
        ("nowhere/naming-v0", NamespaceNotFound, 'No namespace "nowhere"'),
        ("naming-v7", VersionNotFound, 'The newest is "naming-v0"'),
        ("test-wait-v1", DeprecatedEnv, 'Use "test-wait-v2"'),
    ],
)
def test_unknown_ids_suggest_the_nearest(registered, env_id, error, words):
    with pytest.raises(error, match=words) as raised:
        llm_arena.make(env_id)
    assert isinstance(raised.value, LookupError) and raised.value.exit_code == 2


def test_unknown_arguments_suggest_the_nearest():
    with pytest.raises(UnknownName, match='Did you mean "retries"'):
        llm_arena.make("kuhn-poker-v0", retriez=1)


@pytest.mark.parametrize("env_id", [None, 5])
def test_something_else_than_an_id_is_told(env_id):
    with pytest.raises(UsageError, match="takes an id like naming-v0"):
        llm_arena.make(env_id)


def test_registering_again_replaces_with_a_warning(registered):
    with pytest.warns(UserWarning, match="is replaced"):
        llm_arena.register("test-wait-v2", Wait)
    assert llm_arena.make("test-wait-v2").word == "ok"


@pytest.mark.parametrize("env_id", ["nameless", "a b-v0", "x-v", "-v0"])
def test_malformed_ids_are_refused(env_id):
    with pytest.raises(UsageError, match="malformed"):
        llm_arena.register(env_id, Wait)


def test_a_broken_module_breaks_only_its_own_env():
    llm_arena.register("test-broken-v0", "no.such.module:Env")
    try:
        with pytest.raises(EnvContractError, match="can't be imported"):
            llm_arena.make("test-broken-v0")
        llm_arena.make("kuhn-poker-v0")
    finally:
        del llm_arena.registry.entries["test-broken-v0"]


def test_an_entry_point_that_makes_something_else_is_told():
    llm_arena.register("test-other-v0", lambda: object())
    try:
        with pytest.raises(EnvContractError, match="expected an ArenaEnv"):
            llm_arena.make("test-other-v0")
    finally:
        del llm_arena.registry.entries["test-other-v0"]


def test_module_colon_id_imports_first(tmp_path, monkeypatch):
    (tmp_path / "my_games_x.py").write_text(
        "import llm_arena\nllm_arena.register('test-mine-v0', 'llm_arena.envs.kuhn_poker:KuhnPoker')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert llm_arena.make("my_games_x:test-mine-v0").spec.id == "kuhn-poker-v0"
    finally:
        del llm_arena.registry.entries["test-mine-v0"]


def test_bad_class_attributes_are_told_when_the_class_is_made():
    with pytest.raises(EnvContractError, match="a version"):
        type("Bad", (Wait,), {"id": "noversion"})
    with pytest.raises(EnvContractError, match="defines _pay"):
        type("Bad", (Wait,), {"_pay": lambda self, rewards: None})
    with pytest.raises(EnvContractError, match="lower-case letters"):
        type("Bad", (Wait,), {"id": "bad-v0", "roles": {"Player1": 2}})


def test_pprint_prints_ids(capsys):
    with warnings.catch_warnings():
        llm_arena.pprint_registry()
    assert "kuhn-poker-v0" in capsys.readouterr().out
