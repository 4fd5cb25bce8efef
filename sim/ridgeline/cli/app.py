"""The table of verbs. Verb `run` is `run_` in `run_.py`, imported when it is called.

(The underscore: a module named `list` would hide the built-in in this package.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from cyclopts import App

from ridgeline.errors import RidgelineError
from ridgeline.version import __version__

Command = TypeVar("Command", bound=Callable[..., Any])

app = App(
    name="ridgeline",
    help="How fast a machine trains a network, at what energy, and what limits it.",
    version=__version__,
    version_flags=["--version"],
    help_format="plaintext",
    help_epilogue="Every verb takes --quiet (-q): no notes and no progress; --verbose (-v): whole"
    " summaries, and which files were read; and --plugin FILE.py: a file of yours that registers op"
    " kinds, schedules, topologies and the like (docs/extending.md).\n\n"
    "Example: ridgeline run resnet50 dgx1-v100 --plan data=8 --batch 2048",
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `execute` says that it was interrupted
)


class Verb(NamedTuple):
    """One line of help, and a command that runs as it stands."""

    help: str
    example: str


VERBS = {
    "demo": Verb("Run the first example, and write its figures to out/.", "ridgeline demo"),
    "run": Verb(
        "Simulate one training step.",
        "ridgeline run resnet50 dgx1-v100 --plan data=8 --batch 2048 --precision fp16-mixed",
    ),
    "sweep": Verb(
        "Simulate every combination of the values in a study file.",
        "ridgeline sweep docs/examples/hbm.yaml --output hbm.csv",
    ),
    "search": Verb(
        "Search the values in a study file for the best, by several objectives.",
        "ridgeline search docs/examples/search.yaml --evaluations 8",
    ),
    "plan": Verb(
        "Find the best plan for a step on a given number of devices.",
        "ridgeline plan resnet18 dgx1-v100 --devices 4 --batch 32 --limit 4",
    ),
    "scaling": Verb(
        "Simulate a step on more and more devices, by each strategy and the best hybrid.",
        "ridgeline scaling resnet18 dgx1-v100 --devices 1,2,4 --strategies data --batch 64",
    ),
    "whatif": Verb(
        "Scale rates and latencies of a step: step time and critical path, before and after.",
        'ridgeline whatif resnet50 dgx1-v100 --plan data=8 --batch 256 --scale "link.nvlink2 2x"',
    ),
    "parts": Verb(
        "Simulate a network whose parts (encoder, projector, decoder) have plans of their own.",
        "ridgeline parts docs/examples/parts/qwen3-vl-8b.yaml dgx-h100 --batch 8 --plan tensor=4"
        " --parts 'vision: data=2,frozen'",
    ),
    "generate": Verb(
        "Generate tokens by continuous batching: throughput, latency, energy, room of the cache.",
        "ridgeline generate llama3.2-1b dgx-h100 --lengths 128/32 --requests 64 --software vllm",
    ),
    "rl": Verb(
        "Simulate reinforcement learning: rollouts, scoring, training, and what each pool waits"
        " for.",
        "ridgeline rl docs/examples/rl/ppo-64-colocated.yaml",
    ),
    "jobs": Verb(
        "Simulate jobs that share a fabric: the time of each, alone and beside the others.",
        "ridgeline jobs docs/examples/jobs/two-jobs.yaml --placement packed,striped",
    ),
    "train": Verb(
        "Simulate a whole training run to its target: failures, saves, energy, cost, carbon.",
        "ridgeline train docs/examples/runs/resnet50-dgx1.yaml --seeds 5",
    ),
    "top": Verb(
        "Print the best rows of a sweep by one column.",
        "ridgeline top docs/examples/hbm.csv --by energy_j.total --n 5",
    ),
    "pareto": Verb(
        "Print the Pareto front of the rows of a sweep.",
        "ridgeline pareto docs/examples/hbm.csv --min step_time_s,energy_j.total",
    ),
    "compare": Verb(
        "Compare steps by every normalisation, with the range of each ratio.",
        'ridgeline compare "resnet18 v100-sxm2-16gb --batch 64"'
        ' "resnet18 a100-sxm4-40gb --batch 64"',
    ),
    "lint": Verb(
        "Check results, comparisons, studies, tables and figures for ways to mislead.",
        "ridgeline lint docs/examples/hbm.yaml docs/examples/hbm.csv",
    ),
    "verify": Verb(
        "Repeat what a result, figure, table or report says of itself, and compare.",
        "ridgeline verify docs/examples/honesty/product.json",
    ),
    "plot": Verb(
        "Draw a figure of a sweep or of validation rows.",
        "ridgeline plot pareto docs/examples/hbm.csv --x mfu --y energy_j.total --out front.png",
    ),
    "report": Verb(
        "Write a report as one HTML file: figures to hover and zoom, tables, their data.",
        "ridgeline report docs/examples/hbm.csv --out report.html",
    ),
    "trace": Verb(
        "Read a network or an execution from another program's file, or write one.",
        "ridgeline trace export resnet50 --output resnet50.json --precision fp32",
    ),
    "gemm": Verb(
        "Price one matrix product on a device, or count its cycles on a systolic array.",
        "ridgeline gemm 4096 4096 4096 --device v100-sxm2-16gb",
    ),
    "conv": Verb(
        "Price one pass over a convolution on one device.",
        "ridgeline conv 64 256 56 56 64 1 --device v100-sxm2-16gb --pass weight-gradient",
    ),
    "fuse": Verb(
        "Find the layers of a network to fuse on a device: inference, or a training step.",
        "ridgeline fuse vgg19 tpu-v1 --precision int8",
    ),
    "rnn": Verb(
        "Price one pass over one recurrent layer on one device.",
        "ridgeline rnn 64 512 25 --device v100-sxm2-16gb --cell gru --pass backward",
    ),
    "scalesim": Verb(
        "Count the cycles of the layers in files of SCALE-Sim.",
        "ridgeline scalesim docs/examples/scalesim/array.cfg docs/examples/scalesim/layers.csv",
    ),
    "calculon": Verb(
        "Simulate the step that the files of Calculon describe.",
        "ridgeline calculon docs/examples/calculon/gpt3-22b.json"
        " docs/examples/calculon/tensor-8.json docs/examples/calculon/a100.json",
    ),
    "roofline": Verb(
        "Print a device's ridge points; draw networks and products under its roofs.",
        "ridgeline roofline v100-sxm2-16gb --model resnet18 --out roofline.svg",
    ),
    "energy-table": Verb(
        "Print the prices of an energy table with their sources.",
        "ridgeline energy-table horowitz-45nm",
    ),
    "formats": Verb(
        "Print the number formats, and the error of each on a distribution of values.",
        "ridgeline formats --lognormal=-20,4 --scale 65536",
    ),
    "collective": Verb(
        "Time one collective on the links of a machine.",
        "ridgeline collective all-reduce 100MB dgx1-v100",
    ),
    "transport": Verb(
        "Simulate messages on a network packet by packet: ECMP, spraying, PFC, DCQCN, credits.",
        'ridgeline transport permutation:1 1MB "FatTree(4, 50 GB/s, 1 us)" --transport dcqcn',
    ),
    "memory": Verb(
        "Print the peak memory of a step on one device, by kind of tensor.",
        "ridgeline memory gpt2 --batch 8 --precision bf16-mixed --recompute full",
    ),
    "topology": Verb(
        "Measure a network, and draw it with the load of its links.",
        'ridgeline topology dgx1-v100 --load "all-reduce 100MB" --plot dgx1.png',
    ),
    "reproduce": Verb(
        "Reproduce a published result: predicted, published, residual.",
        "ridgeline reproduce caterpillar",
    ),
    "validate": Verb(
        "Predict published measurements, and print the errors.",
        "ridgeline validate gemm",
    ),
    "import-rows": Verb(
        "Convert a table of measurements to rows with the names of the catalogue.",
        "ridgeline import-rows docs/examples/measured.csv --suite llm --out normalised.csv",
    ),
    "calibrate": Verb(
        "Measure this machine, or read measured tables, and write a device file.",
        "ridgeline calibrate --quick --seconds 1 --out this-machine.yaml",
    ),
    "import-design": Verb(
        "Import hardware, workload and mapping files of Timeloop, AccelForge or ZigZag.",
        "ridgeline import-design docs/examples/designs/timeloop.yaml",
    ),
    "list": Verb(
        "List the shipped models, machines and software stacks.",
        'ridgeline list models --search "moe > 100B"',
    ),
    "show": Verb(
        "Show one model, machine or software stack, or the differences of two.",
        "ridgeline show resnet50",
    ),
    "new": Verb(
        "Write a device file to start from, with a comment on every field.",
        "ridgeline new device --kind systolic --name my-accelerator",
    ),
    "doctor": Verb("Check the installation, and measure it.", "ridgeline doctor"),
}
for _name, _verb in VERBS.items():
    app.command(
        "ridgeline.cli.{0}_:{0}_".format(_name.replace("-", "_")),
        name=_name,
        help=_verb.help,
        help_epilogue=f"Example: {_verb.example}",
    )


app.register_install_completion_command(
    help="Install completion of verbs, options and names for the shell in use (bash, zsh, fish)."
)


def verb(name: str, *, help: str, example: str) -> Callable[[Command], Command]:
    """Return a decorator that adds a verb to the command line, as plug-ins do.

    Verbs that ship stand in the table above: their files are imported when they are called.

    Parameters
    ----------
    help, example
        One line of help, and a command that runs as it stands.

    Raises
    ------
    RidgelineError
        If there is a verb of that name; by the decorator.
    """

    def put(command: Command) -> Command:
        if name in VERBS:
            raise RidgelineError(f"verb {name!r} is registered twice")
        VERBS[name] = Verb(help, example)
        app.command(command, name=name, help=help, help_epilogue=f"Example: {example}")
        return command

    return put
