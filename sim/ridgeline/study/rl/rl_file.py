"""Files of kind rl-run: which networks take part, how tokens are generated and trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ridgeline.config import Strict, check_kind, read_yaml, validate

Count = Annotated[int, Field(ge=1, le=10**7)]
Scalar = int | float | bool | str
Arrangement = Literal["colocated", "disaggregated", "asynchronous"]


class RolloutPhase(Strict):
    """How the actor generates."""

    plan: dict[str, Scalar] = Field(default_factory=dict)
    """Degrees of one replica: tensor, pipeline, expert with as many data."""
    precision: str = "bf16-true"
    kv_format: str = "bf16"
    software: str = "vllm"
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Fields of `EngineOptions`: most_sequences, chunk, ..."""


class TrainPhase(Strict):
    """How networks are trained, and how others score."""

    plan: dict[str, Scalar] = Field(default_factory=dict)
    """Degrees and modes; `data` follows from the devices."""
    precision: str = "bf16-mixed"
    software: str = "megatron-core"
    pack: Count = 4096
    """Tokens of a row that sequences are packed into."""
    micro_batch: Count = 1
    """Rows of a micro-batch."""
    updates: Count = 1
    """Weight updates that the tokens of one iteration are shared by."""


class RlFile(Strict):
    """A run of reinforcement learning."""

    kind: Literal["rl-run"]
    name: str
    description: str = ""
    algorithm: Literal["ppo", "grpo"] = "ppo"
    """PPO (Schulman et al., 2017, arXiv:1707.06347; Ouyang et al., 2022, arXiv:2203.02155: actor,
    critic, reference and reward), or GRPO (DeepSeekMath, 2024, arXiv:2402.03300: no critic; a
    group of outputs of each prompt is its own baseline)."""
    cluster: str
    devices: Count
    arrangement: Arrangement = "colocated"
    """Phases one after the other on all devices; generation on a pool of its own, which waits for
    new weights; or the same with weights that may be `staleness` updates old."""
    staleness: Annotated[int, Field(ge=0, le=64)] = 1
    """Of an asynchronous run: iterations that the weights of a rollout may be behind."""
    rollout_devices: Count | None = None
    """Devices of the pool that generates; None: the split with the shortest iteration."""
    actor: str
    critic: str = ""
    """By default as the actor."""
    reward: str = ""
    """A network that scores; "": a rule, which takes no time."""
    prompts: Count
    """Of an iteration."""
    samples: Count = 1
    """Outputs of each prompt."""
    lengths: str
    """PROMPT/OUTPUT, as of ridgeline generate."""
    iterations: Count = 4
    seed: Annotated[int, Field(ge=0, le=2**32)] = 0
    rollout: RolloutPhase = RolloutPhase()
    train: TrainPhase = TrainPhase()


def read_rl(path: str | Path) -> RlFile:
    """Read a file of kind rl-run.

    Raises
    ------
    ConfigError
        With file, line and field of the first mistake.
    """
    document = read_yaml(path)
    check_kind(document, "rl-run")
    file = validate(document, RlFile)
    if file.algorithm == "grpo" and file.critic:
        raise document.error("grpo has no critic", ("critic",))
    if file.arrangement == "colocated" and file.rollout_devices is not None:
        raise document.error(
            "colocated phases share all devices: leave it out", ("rollout_devices",)
        )
    if file.rollout_devices is not None and file.rollout_devices >= file.devices:
        raise document.error(
            f"of {file.devices} devices some must train; found {file.rollout_devices}",
            ("rollout_devices",),
        )
    if file.arrangement == "asynchronous" and file.staleness < 1:
        raise document.error(
            "an asynchronous run has weights that are at least 1 iteration old; 0 is disaggregated",
            ("staleness",),
        )
    return file
