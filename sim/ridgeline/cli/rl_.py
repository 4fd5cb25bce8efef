"""``ridgeline rl``: iterations of reinforcement learning, and what each pool waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.number_options import Count
from ridgeline.cli.output import console, print_json
from ridgeline.cli.searched import Json

if TYPE_CHECKING:
    from ridgeline.study.rl.rl_run import RlRun


def rl_(
    file: str,
    *,
    rollout_devices: Count | None = None,
    splits: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> None:
    """Simulate reinforcement learning: rollouts, scoring, training, new weights, and who waits.

    Parameters
    ----------
    file
        A file of kind rl-run (docs/reinforcement-learning.md).
    rollout_devices
        Devices that generate, in place of the file's; by default the split with the shortest
        iteration.
    splits
        Print every split of the devices.
    """
    from ridgeline.errors import ConfigError
    from ridgeline.study.rl.rl_file import read_rl
    from ridgeline.study.rl.rl_run import run_rl
    from ridgeline.study.rl.rl_run import splits as every_split

    described = read_rl(file)
    if described.arrangement == "colocated" and (splits or rollout_devices is not None):
        raise ConfigError(
            "colocated phases share all devices: there are no splits",
            field="--splits" if splits else "--rollout-devices",
        )
    if splits:
        runs = every_split(described)
        if json:
            print_json([run.to_dict() for run in runs])
        else:
            _print_splits(runs)
        return
    run = run_rl(described, rollout_devices)
    if json:
        print_json(run.to_dict())
    else:
        _print(run)


def _print(run: RlRun) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    found, screen = run.to_dict(), console()
    stale = f", weights at most {found['staleness']} behind" if found["staleness"] else ""
    screen.print(
        f"{found['name']}: {found['algorithm']}, {found['arrangement']}{stale}; "
        f"{found['rollout_devices']} devices generate, {found['train_devices']} train, on"
        f" {found['cluster']}",
        soft_wrap=True,
    )
    table = plain_table({"": "left", " ": "right"})
    table.add_row("iteration", show(found["iteration_s"], "s", 4))
    mean_s = sum(found["rollout_s"]) / len(found["rollout_s"])
    table.add_row("rollout, until its longest", show(mean_s, "s", 4))
    for words, key in (("scoring by the", "scored_s"), ("training of the", "trained_s")):
        for name, time_s in found[key].items():
            table.add_row(f"{words} {name}", show(time_s, "s", 4))
    table.add_row("new weights", show(found["copy_s"], "s", 4))
    table.add_row("tokens generated", f"{found['generated_tokens']:,}")
    table.add_row("energy", show(found["energy_j"], "J", 4))
    screen.print(table)
    shares = plain_table({"devices": "left", "doing": "left", "of the time": "right"})
    for pool, parts in found["shares"].items():
        for why, share in parts.items():
            words = why if why == "busy" else f"waiting for {why}"
            if why == "weights":
                words = "taking new weights"
            elif why == "longest rollout":
                words = "waiting for the longest rollout"
            shares.add_row(pool, words, f"{share:.1%}")
    screen.print(shares)


def _print_splits(runs: list[RlRun]) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    columns = ("generate", "train", "iteration", "rollout busy", "train busy")
    table = plain_table(dict.fromkeys(columns, "right"))
    best = min(run.iteration_s for run in runs)
    for run in runs:
        busy = run.to_dict()["utilisation"]
        mark = " best" if run.iteration_s == best else ""
        table.add_row(
            str(run.rollout_devices), str(run.train_devices),
            show(run.iteration_s, "s", 4) + mark, f"{busy['rollout']:.1%}", f"{busy['train']:.1%}",
        )  # fmt: skip
    console().print(table)
