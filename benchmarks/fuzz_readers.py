"""Mutation fuzzer of every reader of files: a spoiled file is read, or refused in one line.

    python benchmarks/fuzz_readers.py                      # 12,000 cases, seed 1
    python benchmarks/fuzz_readers.py --cases 500 --seed 7 --readers cluster kineto
    python benchmarks/fuzz_readers.py --corpus FOLDER      # FOLDER/READER/* as files to spoil

Each case takes a file that can be read, spoils it by one to four edits (of bytes, lines, numbers,
words, or of the tree of a JSON file), and reads it in this process. It fails if anything but a
`RidgelineError` is raised, if the message has several lines, control characters or no file, if it
takes longer than `LIMIT_S`, or `LIMIT_BYTES` more of address space. The same seed draws the
same cases.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.input_files import INPUT_KINDS, named
from ridgeline.network.astrasim_files import read_network, read_system
from ridgeline.network.collective_files import read_collective
from ridgeline.network.collectives import collective_files
from ridgeline.network.resolve import load_cluster
from ridgeline.network.tuner import read_tuner
from ridgeline.parallel.plan.text import make_plan, plan_fields
from ridgeline.study.calculon import read_calculon
from ridgeline.study.calibrate.kernel_tables import read_kernels
from ridgeline.study.import_rows import import_table
from ridgeline.study.import_rows.nccl_tests import read_nccl_tests
from ridgeline.study.launch import read_launch
from ridgeline.workload.files import load_model, load_network
from ridgeline.workload.model import Model
from ridgeline.workload.trace.native import model_document, to_text

ROOT = Path(__file__).resolve().parents[1]
SEEDS = Path(__file__).parent / "data" / "fuzz"
LIMIT_S = 10
LIMIT_BYTES = 1 << 30
"""Address space beyond what is in use before a file is read."""
MOST_LETTERS = 2000
"""Of a message: a reader names what it found, and does not repeat it."""

WORDS = (
    "0", "-1", "1e400", "-1e-400", "nan", "inf", "''", "null", "[]", "{}", "true", "no", "*a",
    "&a [1]", "99999999999999999999", "1" * 5000, "!!python/object:os.system x", "1.5", "0x1F",
    "1 GiB", "5 parsecs", "Gib", "{a: {b: {c: 1}}}", "[[[[1]]]]", "é\u202e", "\\x00", "../../etc/x",
    "- 1", "a" * 300, "1_000", "08", "1:30", "2026-01-01", "%s%n", "\x1b[31m", "<<: 3", "$HOME",
)  # fmt: skip
NUMBERS = (0, -1, 1, 7, 2**31, 2**63, -(2**64), 10**30, 0.5, -0.0, 1e308, 1e-320)
VALUES: tuple[Any, ...] = (None, True, "", "x", [], {}, [[]], {"a": 1}, [1, "a", None], *NUMBERS)


class ReaderUnderTest(NamedTuple):
    """One reader and files that it reads."""

    read: Callable[[Path], Any]
    files: tuple[Path, ...]

    def only(self, files: Sequence[Path]) -> ReaderUnderTest:
        """Return this reader with those of some files that it reads."""
        return self._replace(files=tuple(path for path in files if self._reads(path)))

    def _reads(self, path: Path) -> bool:
        try:
            self.read(path)
        except RidgelineError:
            return False
        return True


def _built(path: Path) -> Any:
    """Read a network and build its graph, which is where sizes count."""
    model = load_model(path)
    if isinstance(model, Model):
        model.forward(model.network.smallest_batch, "fp32")
    return model


def _by_name(load: Callable[[str], Any]) -> Callable[[Path], Any]:
    return lambda path: load(str(path))


def _calculon(part: int) -> Callable[[Path], Any]:
    folder = ROOT / "docs" / "examples" / "calculon"
    parts = [folder / "gpt3-22b.json", folder / "tensor-8.json", folder / "a100.json"]

    def read(path: Path) -> Any:
        application, execution, system = [*parts[:part], path, *parts[part + 1 :]]
        return read_calculon(application, execution, system)

    return read


def readers(made: Path) -> dict[str, ReaderUnderTest]:
    """Return every reader by name; files that ridgeline writes itself are written to `made`."""
    examples = ROOT / "docs" / "examples"
    _write(made)

    def found(*patterns: str) -> tuple[Path, ...]:
        files = tuple(path for one in patterns for path in sorted(ROOT.glob(one)))
        assert files, patterns
        return files

    shipped = {
        "model": found("models/[a-m]*.yaml")[::12],
        "device": found("hwconfigs/devices/*.yaml", "docs/examples/devices/*.yaml")[::6],
        "node": found("hwconfigs/nodes/*.yaml")[::6],
        "cluster": found("hwconfigs/clusters/*.yaml")[::6],
        "software": found("hwconfigs/software/*.yaml", "docs/examples/my-stack.yaml")[::4],
        "component": found("hwconfigs/components/*.yaml")[::3],
        "energy-table": found("hwconfigs/energy/*.yaml")[::3],
        "dataset": found("models/datasets/*.yaml"),
        "study": found("docs/examples/array*.yaml", "docs/examples/*sweep.yaml"),
        "jobs": found("docs/examples/jobs/*.yaml"),
        "rl-run": found("docs/examples/rl/*.yaml"),
        "run": found("docs/examples/runs/*.yaml"),
    }
    by_kind = {
        kind: ReaderUnderTest(
            _built if kind == "model" else _by_name(named(INPUT_KINDS[kind].loader)), files
        )
        for kind, files in shipped.items()
    }
    fabrics = examples / "fabrics"
    designs = examples / "designs"
    launch = ROOT / "tests" / "data" / "launch"
    return (
        by_kind
        | {
            "fabric": ReaderUnderTest(
                lambda path: load_cluster(f"{path} @ h100-sxm5-80gb"),
                tuple(sorted(fabrics.glob("*.*"))),
            ),
            "astrasim-network": ReaderUnderTest(
                read_network, (examples / "astrasim" / "ring-of-switches.yml",)
            ),
            "astrasim-system": ReaderUnderTest(
                read_system, (examples / "astrasim" / "system.json",)
            ),
            "collective": ReaderUnderTest(
                read_collective, (made / "ring.xml", made / "ring.0.et", *_seeds("collective*"))
            ),
            "tuner": ReaderUnderTest(read_tuner, _seeds("tuner*")),
            "array-config": ReaderUnderTest(
                lambda path: rl.load_device(str(path)), tuple((examples / "scalesim").glob("*.cfg"))
            ),
            "layer-table": ReaderUnderTest(_built, (examples / "scalesim" / "layers.csv",)),
            "graph": ReaderUnderTest(_built, (made / "mlp.json",)),
            "hugging-face": ReaderUnderTest(_built, _seeds("hugging-face*")),
            "kineto": ReaderUnderTest(_built, _seeds("kineto*")),
            "chakra": ReaderUnderTest(_built, (made / "ring.0.et",)),
            "chakra-json": ReaderUnderTest(_built, _seeds("chakra*")),
            "design": ReaderUnderTest(
                lambda path: rl.import_design([path]),
                tuple(sorted(path for path in designs.glob("*.yaml") if "zigzag" not in path.name)),
            ),
            "calculon-application": ReaderUnderTest(
                _calculon(0), (examples / "calculon" / "gpt3-22b.json",)
            ),
            "calculon-execution": ReaderUnderTest(
                _calculon(1), (examples / "calculon" / "tensor-8.json",)
            ),
            "calculon-system": ReaderUnderTest(
                _calculon(2), (examples / "calculon" / "a100.json",)
            ),
            "launch": ReaderUnderTest(read_launch, (examples / "train-gpt.sh",)).only(
                [
                    path for path in sorted(launch.iterdir()) if path.is_file()
                ]  # some are several jobs
            ),
            "kernel-table": ReaderUnderTest(
                lambda path: read_kernels(path, "a100-sxm4-80gb"), _seeds("products*")
            ),
            "rows": ReaderUnderTest(
                lambda path: import_table("llm", path), (examples / "measured.csv",)
            ),
            "nccl-tests": ReaderUnderTest(read_nccl_tests, _seeds("all_reduce*")),
            "mapping": ReaderUnderTest(
                named("kernels.mapping.mapping_file:load_mapping"),
                tuple(sorted((examples / "mappings").glob("*.yaml"))),
            ),
            "plan": ReaderUnderTest(
                lambda path: make_plan(plan_fields(str(path))), (made / "plan.yaml",)
            ),
            "parts": ReaderUnderTest(
                _by_name(named("study.parts.part_plans:parse_parts")), (made / "parts.yaml",)
            ),
            "lengths": ReaderUnderTest(
                _by_name(named("study.generation.lengths:parse_lengths")), (made / "lengths.csv",)
            ),
            "table": ReaderUnderTest(
                named("study.sweep:plain_rows"),
                (examples / "hbm.csv", *_made(made, "rows.parquet")),
            ),
            "lint": ReaderUnderTest(
                rl.lint,
                (
                    *sorted((examples / "honesty").iterdir()),
                    made / "figure.svg",
                    made / "figure.png",
                ),
            ),
            "verify": ReaderUnderTest(rl.verify, (examples / "honesty" / "product.json",)),
        }
        | _of_onnx(made)
    )


def _made(folder: Path, name: str) -> tuple[Path, ...]:
    """Return a file that was written, if what writes it is installed."""
    return (folder / name,) if (folder / name).exists() else ()


def _of_onnx(made: Path) -> dict[str, ReaderUnderTest]:
    files = _made(made, "perceptron.onnx")
    return {"onnx": ReaderUnderTest(_built, files)} if files else {}


def _seeds(pattern: str) -> tuple[Path, ...]:
    files = tuple(sorted(SEEDS.glob(pattern)))
    assert files, pattern
    return files


def _write(folder: Path) -> None:
    """Write files in the formats that ridgeline itself writes."""
    where = "Ring(4, 50 GB/s, 1 us)"
    for suffix in ("xml", "et"):
        named_by = str(folder / f"ring.{suffix}")
        written = collective_files("all-reduce", 1e6, where, named_by, algorithm="ring")
        for name, content in written.items():
            Path(name).write_bytes(content)
    text = to_text(model_document(load_network("mlp"), ["fp32"], 2))
    (folder / "mlp.json").write_text(text, "utf-8")
    (folder / "plan.yaml").write_text("data: 2\ntensor: 4\nrecompute: full\nbatch: 64\n", "utf-8")
    (folder / "parts.yaml").write_text("vision: {data: 2, frozen: true}\n", "utf-8")
    (folder / "lengths.csv").write_text("prompt,output\n128,16\n256,32\n", "utf-8")
    _write_figures(folder)
    if find_spec("polars"):
        import polars

        polars.DataFrame({"step_time_s": [0.5, 1.0], "plan": ["data=2", "data=4"]}).write_parquet(
            folder / "rows.parquet"
        )
    if find_spec("onnx"):
        (folder / "perceptron.onnx").write_bytes(_perceptron())


def _write_figures(folder: Path) -> None:
    from PIL import Image, PngImagePlugin

    said = "Speed-up over one device"
    (folder / "figure.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="80" height="60" viewBox="0 0 80 60">'
        f'<title>{said}</title><g id="axes_1"><text x="9" y="50">1</text>'
        '<text x="70" y="50">8</text></g></svg>\n', "utf-8",
    )  # fmt: skip
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Description", said)
    Image.new("RGB", (8, 6), "#ffffff").save(folder / "figure.png", pnginfo=texts)


def _perceptron() -> bytes:
    """Return an ONNX file of two layers."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, size: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])

    weights = {"a.weight": np.ones((32, 16)), "a.bias": np.ones(32), "b.weight": np.ones((32, 8))}
    nodes = [
        helper.make_node("Gemm", ["x", "a.weight", "a.bias"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b.weight"], ["y"]),
    ]
    stored = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "g", [value("x", 16)], [value("y", 8)], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


def spoiled_bytes(choose: random.Random, raw: bytes) -> bytes:
    """Return bytes with one to four edits that know nothing of what they mean."""
    data = bytearray(raw)
    for _ in range(choose.choice((1, 1, 2, 4))):
        at = choose.randrange(len(data) + 1)
        match choose.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << choose.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = choose.randbytes(choose.choice((1, 2, 8, 40)))
            case 3:
                del data[at : at + choose.randrange(1, 30)]
            case _:
                other = choose.randrange(len(data) + 1)
                data[at:at] = data[other : other + choose.randrange(1, 60)]
    return bytes(data)


def spoiled_text(choose: random.Random, text: str) -> str:
    """Return a text with one to four lines, words or numbers changed."""
    lines = text.split("\n")
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        i, j = choose.randrange(len(lines)), choose.randrange(len(lines))
        line = lines[i]
        numbers = list(re.finditer(r"-?\d+(\.\d+)?", line))
        words = list(re.finditer(r"[\w./+-]+", line))
        match choose.randrange(9):
            case 0:
                del lines[i]
            case 1:
                lines.insert(i, lines[j])
            case 2 if numbers:
                one = choose.choice(numbers)
                word = choose.choice([str(number) for number in NUMBERS] + ["nan", "1e999"])
                lines[i] = line[: one.start()] + word + line[one.end() :]
            case 3 if words:
                one = choose.choice(words)
                lines[i] = line[: one.start()] + choose.choice(WORDS) + line[one.end() :]
            case 4:
                lines[i], lines[j] = lines[j], lines[i]
            case 5:
                lines[i] = line[: choose.randrange(len(line) + 1)]
            case 6:
                lines[i] = " " * choose.randrange(6) + line.lstrip()
            case 7 if ": " in line:
                lines[i] = line[: line.index(": ") + 2] + choose.choice(WORDS)
            case _:
                at = choose.randrange(len(line) + 1)
                lines[i] = line[:at] + choose.choice(WORDS) + line[at:]
        lines = lines or [""]
    return "\n".join(lines)


def spoiled_tree(choose: random.Random, tree: Any) -> Any:
    """Return the tree of a JSON file with one to four of its values changed, moved or missing."""
    tree = copy.deepcopy(tree)
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return choose.choice(VALUES)
        parent, key = choose.choice(places)
        match choose.randrange(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[f"{key}x"] = parent.pop(key)
            case 2:
                other, place = choose.choice(places)
                parent[key] = copy.deepcopy(other[place])
            case 3 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            case 4 if isinstance(parent[key], int | float):
                parent[key] = choose.choice(NUMBERS)
            case _:
                parent[key] = choose.choice(VALUES)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(pairs):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def spoiled(choose: random.Random, raw: bytes, suffixes: Sequence[str]) -> bytes:
    """Return the content of a file, spoiled in one of the ways that its kind has."""
    packed = suffixes[-1:] == [".gz"]
    if packed and choose.random() < 0.9:
        return gzip.compress(spoiled(choose, gzip.decompress(raw), suffixes[:-1]), mtime=0)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return spoiled_bytes(choose, raw)
    way = choose.random()
    if suffixes[-1:] == [".json"] and way < 0.6:
        return json.dumps(spoiled_tree(choose, json.loads(text)), indent=1).encode()
    if way < 0.1:
        return spoiled_bytes(choose, raw)
    return spoiled_text(choose, text).encode("utf-8", "surrogateescape")


class _TooLongError(BaseException):
    """The reader did not end; no ``except Exception`` may swallow it."""


def _out_of_time(*_: object) -> None:
    raise _TooLongError


@contextmanager
def limited() -> Iterator[None]:
    """Bound the processor time and the address space of what is read meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, _out_of_time)
    in_use = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + LIMIT_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


def fault_of(text: str) -> str | None:
    """Return what is wrong with a message, None if it is one short line of printable letters."""
    if len(text) > MOST_LETTERS:
        return f"a message of {len(text)} letters"
    if bad := next((c for c in text if not c.isprintable()), ""):
        return f"a message with {bad!r}: {text!r}"
    return None


def failure(read: Callable[[Path], Any], path: Path) -> str | None:
    """Return what is wrong with how a file is read, None if it is read or refused well."""
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    except RidgelineError as error:
        return fault_of(str(error))
    except _TooLongError as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"longer than {LIMIT_S} s, at {where.filename}:{where.lineno}"
    except Exception as error:
        own = [
            one for one in traceback.extract_tb(error.__traceback__) if "ridgeline" in one.filename
        ]
        where = f"{own[-1].filename.rpartition('ridgeline/')[2]}:{own[-1].lineno}" if own else "?"
        return f"{type(error).__name__} at {where}: {str(error)[:200]}"
    return None


class Failed(NamedTuple):
    """A case that failed, and where its file is kept."""

    reader: str
    seed: str
    says: str


def run(
    cases: int, seed: int, chosen: Mapping[str, ReaderUnderTest], keep: Path | None = None
) -> list[Failed]:
    """Run cases in turn over the readers, and return those that failed."""
    failed = []
    names = sorted(chosen)
    for one in chosen.values():  # also compiles what reading calls
        for path in one.files:
            one.read(path)
    with tempfile.TemporaryDirectory(prefix="ridgeline-fuzz-") as folder:
        for number in range(cases):
            name = names[number % len(names)]
            choose = random.Random(f"{seed}-{number}-{name}")
            source = choose.choice(chosen[name].files)
            suffixes = [*source.suffixes]
            path = Path(folder) / f"case{number}{''.join(suffixes[-2:])}"
            path.write_bytes(spoiled(choose, source.read_bytes(), suffixes))
            says = failure(chosen[name].read, path)
            if says:
                failed.append(Failed(name, f"{seed}-{number} from {source.name}", says))
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, keep / f"{name}-{seed}-{number}{''.join(suffixes[-2:])}")
            path.unlink()
    return failed


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", nargs="*", help="by default all")
    parser.add_argument("--corpus", type=Path, help="folder with a folder of files a reader")
    parser.add_argument("--keep", type=Path, help="folder for the files that failed")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="ridgeline-fuzz-") as made:
        known = readers(Path(made))
        if given.corpus:
            known = {
                folder.name: known[folder.name].only(sorted(folder.iterdir()))
                for folder in sorted(given.corpus.iterdir())
            }
        chosen = {name: known[name] for name in given.readers or known}
        start = time.perf_counter()
        failed = run(given.cases, given.seed, chosen, given.keep)
    for one in failed:
        print(f"{one.reader}: {one.seed}: {one.says}")
    took = time.perf_counter() - start
    print(f"{given.cases} cases of {len(chosen)} readers, {len(failed)} failed, {took:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
