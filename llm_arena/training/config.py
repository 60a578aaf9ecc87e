"""Settings of a training run. `config_parse` reads them from files and the command line."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import tyro

from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import UsageError
from llm_arena.tokens import History
from llm_arena.training import policy_tables
from llm_arena.training.credit import CreditBy, Estimator
from llm_arena.training.evaluation_settings import EvaluationSettings
from llm_arena.training.league_settings import LeagueSettings

Divisor = Literal["auto", "constant", "tokens", "turns", "traces"]
LossName = Literal["reinforce", "ppo_clip", "dr_grpo", "dapo", "gspo", "cispo"]
ImportanceHow = Literal["auto", "none", "truncate", "mask"]
ImportanceUnit = Literal["auto", "token", "turn", "trace"]
KlHow = Literal["exact", "k1_reward", "k2"]
KlReference = Literal["ema", "initial"]
PublishHow = Literal["auto", "adapter", "merged"]
TrackerName = Literal["none", "tensorboard", "wandb", "trackio"]

_EXAMPLE = """'{"namers": 4}'"""

_COUNTS = (
    *("num_steps", "starts_per_step", "group_size", "max_new_tokens", "max_open_episodes"),
    *("token_budget", "max_row_tokens", "checkpoint_every", "probe_every", "epochs", "minibatches"),
)
_NOT_NEGATIVE = ("lr_end", "weight_decay", "kl_weight", "entropy_weight", "entropy_weight_end")
_MAY_BE_NONE = ("lr_end", "entropy_weight_end", "parity_tolerance", "clip_low", "clip_high")


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Where the learner lives."""

    devices: str = "auto"
    """A CUDA device, e.g. `0`; `cpu`; or `auto`: the first CUDA device where there is one."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run. The defaults train one model in all seats of a game by self-play."""

    env: str = "naming-v0"
    """Id of the game."""
    env_args: str = "{}"
    """Keyword arguments of the game, as a JSON object. A TOML table and, from Python, a dict are taken as well."""
    harness: str | None = None
    """An async function in place of a game, as `module:function`. It is called with each start, whole; see
    docs/harness.md. In `roster`, `*` is every role that is not named. Settings of games are refused with it."""
    model: str = "smollm2-135m"
    """A known model, a Hugging Face folder, or a hub id: the weights to start from."""
    opponent: str | None = None
    """An agent string for all seats but one; the trained seat rotates. None: the model plays every seat."""
    roster: str = "{}"
    """Who holds which role or seat, as a JSON object of agent strings, e.g. '{"verifier": "smollm2-135m"}'. What is not
    named there, or is named `learner`, is trained as one policy. `learner:NAME` trains a policy with weights of its
    own; in a game where all trained policies have such names, every seat has to be named."""
    policies: str = "{}"
    """What a trained policy has of its own, as a JSON object of tables, e.g. '{"solver": {"lr": 1e-6}}' for
    `learner:solver` (in TOML a table [policies.solver]): model, lora_rank, lora_alpha, lora_targets, publish, lr,
    lr_end, warmup_steps, weight_decay, grad_clip, and engine, itself a table. All else is as in the run."""
    alternate_every: int = 0
    """Of several trained policies only one learns at a time, in order of their names, each for so many steps; the
    others play on and keep their weights. 0: all learn in every step."""
    league: LeagueSettings = field(default_factory=LeagueSettings)
    """Whom the learner meets beside itself: past versions and anchors. See docs/league.md."""
    num_steps: Annotated[int, tyro.conf.arg(aliases=["--steps"])] = 25
    """Steps of the run: each plays, learns, and hands new weights to the engine."""

    starts: str | None = None
    """A JSONL file of starts. None: the game deals its own, one seed each."""
    starts_per_step: int = 8
    """Starts per step."""
    group_size: int = 1
    """Episodes per start. They share its seed and form a group."""
    input_key: str = "prompt"
    """Field of a start that fills the game's input argument (naming: the topic)."""
    label_key: str = "label"
    """Field of a start that fills the game's label argument, where it has one."""

    credit: CreditBy = "seat"
    """Whose reward a token is credited with: its seat's, the whole trace's, or its place in the group."""
    force_trace_credit: bool = False
    """Allow credit by trace in a zero-sum game, where it has no signal."""
    estimator: Estimator = "rae"
    """From rewards to advantages: a running baseline per role (rae), comparison within groups (loo, group_mean, grpo),
    or with all of a role in the batch (role_norm)."""
    baseline_decay: float = 0.95
    """Decay of the running baseline, per vote."""
    bias_correction: bool = True
    """Divide the running baseline by the weight it has gathered so far."""

    token_rewards: str | None = None
    """Rewards and masks by token, as `module:function`: from a trace to {turn index: {"rewards": [...], "trained":
    [...]}}. None: the game's own, where it has some."""

    loss: LossName = "reinforce"
    """The policy loss. All but `reinforce` bound the ratio to the weights before the step's first update."""
    clip_low: float | None = None
    """The ratio counts down to 1 - clip_low. None: as the loss's authors have it."""
    clip_high: float | None = None
    """The ratio counts up to 1 + clip_high. None: as the loss's authors have it."""
    importance: ImportanceHow = "auto"
    """Weights for tokens that the learner would sample with another probability than the engine did: cut at
    importance_cap (truncate), or 0 above it (mask). `auto`: none for a float32 engine with the newest weights, else
    truncate."""
    importance_cap: float = 2.0
    """The largest weight."""
    importance_unit: ImportanceUnit = "auto"
    """What has one weight, and one ratio in `gspo`: a token, a turn, or all of the policy's tokens in a trace. `auto`:
    token; with `gspo` turn. `gspo` by trace scores the whole batch anew before each update but the first."""
    epochs: int = 1
    """Passes over each step's tokens. More than one wants a loss that bounds the ratio."""
    minibatches: int = 1
    """Optimizer updates per pass."""
    lora_rank: int = 0
    """Train a LoRA adapter of this rank instead of the whole weights; 0 trains the weights."""
    lora_alpha: float = 32.0
    """The adapter's output is multiplied by lora_alpha / lora_rank."""
    lora_targets: str = "all-linear"
    """Layers that get an adapter: `all-linear`, or names separated by commas, e.g. `q_proj,v_proj`."""
    publish: PublishHow = "auto"
    """How an adapter reaches the engine: as an adapter under a name per version, or merged into its base. `auto`:
    merged where adapters are slow (vLLM on a CPU) or not taken (transformers)."""
    lr: float = 1e-5
    """Learning rate of AdamW after the warm-up."""
    lr_end: float | None = None
    """Learning rate at the last step, reached linearly. None: constant."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0. Of policies that learn in turns each counts its own."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    grad_clip: float = 1.0
    """Largest norm of the whole gradient."""
    divisor: Divisor = "auto"
    """What the loss is divided by: the planned number of trained seats per step (constant), the trained tokens of the
    batch, or the mean is taken over each turn or trace first, then over these. `auto`: the loss's own."""
    kl_weight: float = 0.0
    """Weight of KL(policy || reference) at trained tokens: the anchor of pure self-play."""
    kl_estimator: KlHow = "exact"
    """The KL over the whole vocabulary in the loss (exact), or from the sampled tokens alone: as a cost in their
    rewards (k1_reward), or squared in the loss (k2)."""
    kl_reference: KlReference = "ema"
    """The reference: a slow average of the policy's own weights, or the initial model (with LoRA: the base without the
    adapter, which takes no memory)."""
    ema_decay: float = 0.99
    """Decay of that average, per step."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus at trained tokens."""
    entropy_weight_end: float | None = None
    """Entropy weight at the last step, reached linearly. None: constant."""
    ignore_truncated: bool = False
    """Train no token of a reply that was cut by the token cap."""

    temperature: float = 1.0
    """Sampling temperature; training uses the same distribution."""
    max_new_tokens: int = 64
    """Token cap of one turn, of every model in a seat."""
    max_context_tokens: int | None = None
    """Token cap of a seat's whole conversation. None: the model's own."""
    system: str | None = None
    """System text of every model in a seat, put before the game's own. None: the game's alone."""
    history: History = "template"
    """A model's own past in its next prompt: as its chat template prints it now (many drop old thinking, which begins a
    new sequence), or as it was sent and sampled (append). See docs/tokens.md."""
    thinking: bool | None = None
    """Switch thinking on or off for models whose chat template can. None: as the template has it."""
    retries: int | None = None
    """Second chances for a reply that can't be read. None: the game's own setting."""
    illegal: str | None = None
    """What the game does with such a reply: forfeit, skip, random_legal or penalty. None: the game's own setting."""
    penalty: float | None = None
    """Reward of such a reply under `illegal=penalty`. None: the game's own setting."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    """What serves the models."""
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    """Where the learner lives."""
    max_staleness: int = 0
    """Play up to so many steps ahead while the learner works: a batch is then sampled with weights that are that many
    updates old. 0: playing and learning take turns."""
    max_open_episodes: int = 64
    """Episodes that are open at once."""
    token_budget: int = 2048
    """Most tokens in one forward pass of the learner; does not change the gradient."""
    max_row_tokens: int = 2048
    """Prefix trees above this size are cut in two."""
    recompute: bool = False
    """Compute activations once more in the backward pass instead of keeping them: less memory, about a third slower."""
    seed: int = 0
    """Seed of the whole run."""

    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """Matches against the initial model during the run. See docs/diagnostics.md."""
    probe_every: int = 10
    """Every so many weight updates, check that engine and learner give the same log-probabilities."""
    parity_tolerance: float | None = None
    """Largest difference allowed in that check, in nats (times |log-probability| for improbable tokens). None: 1e-4 for
    an engine in float32, 0.2 for one in 16 bits, which a small update may slip through."""
    checkpoint_every: int = 10
    """Steps between checkpoints. The last step always has one."""
    keep_traces: int = 1
    """Write the traces of every so many steps to traces.jsonl; 0 writes none."""
    tracker: TrackerName = "none"
    """Give the metrics to a tracker as well: `tensorboard` and `wandb` (offline unless WANDB_MODE says otherwise) write
    into the run's folder, `trackio` into its own database on this machine."""
    run_dir: str | None = None
    """The run's folder. None: runs/SCRIPT-HASH, so that the same command finds its run again."""
    fresh: bool = False
    """Delete the run's folder and start anew."""

    def __post_init__(self) -> None:
        """Takes a dict for `env_args`, and checks choices and ranges, for a TOML file and Python can give anything.

        Raises:
            UsageError: a value that can't work.
        """
        for name in ("env_args", "roster"):
            if isinstance(getattr(self, name), Mapping):
                object.__setattr__(self, name, json.dumps(getattr(self, name), sort_keys=True))
        object.__setattr__(self, "policies", policy_tables.written(policy_tables.read(self.policies)))
        self.env_kwargs()
        self.seated()
        for name, hint in typing.get_type_hints(type(self)).items():
            choices = typing.get_args(hint)
            if typing.get_origin(hint) is Literal and getattr(self, name) not in choices:
                raise UsageError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in _COUNTS:
            self._check(name, "a whole number of at least 1", lambda value: isinstance(value, int) and value >= 1)
        for name in ("seed", "warmup_steps", "keep_traces", "lora_rank", "max_staleness", "alternate_every"):
            self._check(name, "a whole number of at least 0", lambda value: isinstance(value, int) and value >= 0)
        why = "a finite number above 0 in training, for greedy replies have no gradient"
        self._check("temperature", why, lambda value: value > 0)
        for name in ("lr", "grad_clip", "parity_tolerance", "lora_alpha", "clip_high"):
            self._check(name, "a finite number above 0", lambda value: value > 0)
        for name in _NOT_NEGATIVE:
            self._check(name, "a finite number of at least 0", lambda value: value >= 0)
        for name in ("baseline_decay", "ema_decay", "clip_low"):
            self._check(name, "a number in [0, 1)", lambda value: 0 <= value < 1)
        self._check("importance_cap", "a finite number of at least 1", lambda value: value >= 1)
        self._check_objective()
        self._check_league()
        names = policy_tables.read(self.policies)
        if self.publish == "adapter" and not self.lora_rank and not names:
            raise UsageError("publish=adapter needs an adapter: set lora_rank, e.g. to 16")
        for name in names:
            self.of_policy(name)

    def _check_objective(self) -> None:
        """Refuses what has no meaning together, and bounds that the loss would ignore.

        Raises:
            UsageError: two settings of the loss don't go together.
        """
        for name in ("clip_low", "clip_high"):
            if self.loss == "reinforce" and getattr(self, name) is not None:
                raise UsageError(f"{name} has no effect on loss=reinforce; leave it out, or take loss=ppo_clip")
        weighted = self.importance != "none"
        running = self.estimator == "rae"
        # ema_decay is left out: a script may have one of its own, and its user gives --kl-weight 0
        for name, used, other, remedy in (
            ("importance_cap", weighted, "importance=none", "importance=truncate"),
            ("importance_unit", weighted or self.loss == "gspo", "importance=none", "importance=truncate"),
            ("kl_estimator", self.kl_weight > 0, "kl_weight=0", "kl_weight=1"),
            ("kl_reference", self.kl_weight > 0, "kl_weight=0", "kl_weight=1"),
            ("baseline_decay", running, f"estimator={self.estimator}", "estimator=rae"),
            ("bias_correction", running, f"estimator={self.estimator}", "estimator=rae"),
        ):
            if not used and getattr(self, name) != getattr(TrainConfig, name):
                raise UsageError(f"{name} has no effect with {other}; leave it out, or take {remedy}")
        if self.loss == "gspo" and self.importance_unit == "token":
            raise UsageError(
                "loss=gspo has one ratio for a whole turn or trace, but importance_unit is token; set it to turn or "
                "trace, or take loss=ppo_clip, which has one for each token"
            )
        if self.token_rewards is not None and not all(str(self.token_rewards).partition(":")):
            raise UsageError(
                f"token_rewards must be module:function, e.g. my_rewards:per_token; got {self.token_rewards!r}"
            )

    def _check_league(self) -> None:
        """Refuses a league where somebody else says who sits where.

        Raises:
            UsageError: there are no seats to move on over, or they are given away.
        """
        given = {"harness": self.harness, "opponent": self.opponent, "roster": self.seated()}
        other = next((name for name, value in given.items() if value), None)
        if self.league.on and other is not None:
            raise UsageError(
                f"a league says who sits where in a game, and so does {other}={given[other]!r:.60}; leave {other} out. "
                "An opponent that never changes is an anchor: league.anchors"
            )

    def _check(self, name: str, expected: str, fits: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        if value is None and name in _MAY_BE_NONE:
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and fits(value)):
            raise UsageError(f"{name} must be {expected}, got {value!r}")

    def env_kwargs(self) -> dict[str, Any]:
        """Returns the game's keyword arguments.

        Raises:
            UsageError: `env_args` is not a JSON object, or names an argument twice.
        """
        try:
            kwargs = policy_tables.load_json(self.env_args, "env_args")
        except json.JSONDecodeError as error:
            raise UsageError(
                f"env_args must be a JSON object, e.g. {_EXAMPLE}; got {self.env_args!r}: {error}"
            ) from None
        if not isinstance(kwargs, dict):
            raise UsageError(f"env_args must be a JSON object, e.g. {_EXAMPLE}; got {self.env_args!r}")
        options = {name: getattr(self, name) for name in ("retries", "illegal", "penalty")}
        return {**kwargs, **{name: value for name, value in options.items() if value is not None}}

    def seated(self) -> dict[str, str]:
        """Returns `roster` as a table.

        Raises:
            UsageError: it is not a JSON object of strings, or names a role or seat twice.
        """
        try:
            table = policy_tables.load_json(self.roster, "roster")
        except (json.JSONDecodeError, TypeError):
            table = None
        if not isinstance(table, dict) or not all(isinstance(who, str) for who in table.values()):
            raise UsageError(
                f"""roster must be a JSON object of agent strings, e.g. '{{"judge": "random-legal"}}'; """
                f"got {self.roster!r}"
            )
        if table and self.opponent is not None:
            raise UsageError("give either a roster or an opponent, not both")
        return table

    def without_game(self) -> Self:
        """Returns the settings without those of a game: a script's own are for its game, and for no harness."""
        bare = dataclasses.replace(self, env=TrainConfig.env, env_args="{}", roster="{}")
        return dataclasses.replace(bare, retries=None, illegal=None, penalty=None)

    def of_policy(self, policy: str) -> Self:
        """Returns the settings of one trained policy: those of the run, but for what its own table says.

        Args:
            policy: its name in the roster, `learner:a`, or as in `policies`, `a`.

        Raises:
            UnknownName: its table has a key that is no setting of a policy.
            UsageError: a value in it can't work.
        """
        key = policy_tables.key_of(policy)
        given = policy_tables.read(self.policies).get(key, {})
        own = policy_tables.settings(key, given, typing.get_type_hints(type(self)), self.engine)
        try:
            return dataclasses.replace(self, policies="{}", **own)
        except UsageError as error:
            raise UsageError(f"policies.{key}: {error}") from None

    def learns(self, place: int, policies: int, step: int) -> bool:
        """Returns whether policy number `place` of so many learns in step `step` (from 0); see `alternate_every`."""
        return not self.alternate_every or (step // self.alternate_every) % policies == place

    def agent_settings(self) -> dict[str, Any]:
        """Returns the settings of every model in a seat, by the names that agents know them by."""
        names = ("max_new_tokens", "max_context_tokens", "temperature", "system", "history", "thinking")
        return {name: getattr(self, name) for name in names}

    def entropy_at(self, step: int) -> float:
        """Returns the entropy weight of step `step` (from 0)."""
        return _ramp(self.entropy_weight, self.entropy_weight_end, step, self.num_steps)

    def lr_at(self, step: int, learned: int | None = None) -> float:
        """Returns the learning rate of a step: a pure function, so a resumed run needs no scheduler.

        Args:
            step: of the run, from 0.
            learned: in how many steps before it the policy has learned, which its warm-up goes by; None: in all.
        """
        done = step if learned is None else learned
        warm = min(1.0, (done + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return warm * _ramp(self.lr, self.lr_end, step, self.num_steps)

    def to_json(self) -> dict[str, Any]:
        """Returns all settings."""
        return dataclasses.asdict(self)


def _ramp(start: float, end: float | None, step: int, steps: int) -> float:
    if end is None or steps <= 1:
        return start
    return start + (end - start) * min(step / (steps - 1), 1.0)
