"""Simulates the points of a study: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.plugins import load_named
from ridgeline.study.collective_point import AnyPoint
from ridgeline.study.point_files import NO_FILES, PointFiles, check_same_files
from ridgeline.version import __version__

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from ctypes import c_byte

T = TypeVar("T")
R = TypeVar("R")
Row = dict[str, Any]
Job = tuple[str, AnyPoint]
Done = tuple[str, Row]
CHUNK = 16
_AHEAD = 3  # chunks that wait for each process
_GARBAGE = 50_000  # objects between two looks for garbage in circles
_KILLED = "the worker processes were killed again and again (out of memory?); try fewer --processes"
_MAX_DEATHS = 3  # of workers in a row, without a finished chunk between


def row_of(point: AnyPoint) -> Row:
    """Simulate a point; a failure is a row with its error and nothing else."""
    try:
        return {**point.row(), "error": ""}
    except RidgelineError as error:
        return {"error": str(error)}
    except Exception as error:  # one point that meets a bug must not cost the others
        return {"error": f"internal error: {type(error).__name__}: {error}"}


def run_jobs(
    jobs: Iterable[Job],
    processes: int = 1,
    cluster_address: str | None = None,
    files: PointFiles = NO_FILES,
) -> Iterator[Done]:
    """Yield the key and the row of every job, as they are finished.

    Parameters
    ----------
    processes
        On this machine.
    cluster_address
        Of a Dask scheduler, whose workers are used instead.
    files
        What jobs are made of, of which these workers must have the same.

    Raises
    ------
    RidgelineError
        If workers die again and again, have other files, or the cluster cannot be reached.
    """
    if cluster_address is not None:
        yield from _on_cluster(jobs, cluster_address, files)
    elif processes == 1:
        with _collecting_rarely():
            for key, point in jobs:
                yield key, row_of(point)
    else:
        yield from _in_processes(_chunks(jobs), processes)


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Look for garbage in circles less often: next to nothing of a point is in circles."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _GARBAGE) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _chunks(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    jobs = iter(jobs)
    while chunk := list(islice(jobs, CHUNK)):
        yield chunk


def _run_chunk(chunk: Sequence[Job]) -> list[Done]:
    return [(key, row_of(point)) for key, point in chunk]


def _in_processes(chunks: Iterator[list[Job]], processes: int) -> Iterator[Done]:
    """Run chunks in new processes; the chunks of a worker that dies are run again."""
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool

    again: list[list[Job]] = []
    deaths = 0
    while True:
        waiting: dict[Future[list[Done]], list[Job]] = {}
        try:
            with workers(processes) as pool:
                _fill(pool, waiting, again, chunks, processes * _AHEAD)
                while waiting:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        rows = future.result()
                        del waiting[future]
                        deaths = 0
                        yield from rows
                    _fill(pool, waiting, again, chunks, processes * _AHEAD)
            return
        except BrokenProcessPool as error:
            deaths += 1
            again += waiting.values()
            if deaths == _MAX_DEATHS:
                raise RidgelineError(_KILLED) from error


def _fill(
    pool: ProcessPoolExecutor, waiting: dict[Future[list[Done]], list[Job]],
    again: list[list[Job]], chunks: Iterator[list[Job]], most: int,
) -> None:  # fmt: skip
    """Give the pool chunks, first those of workers that died, until so many wait."""
    while len(waiting) < most:
        chunk = again.pop() if again else next(chunks, None)
        if chunk is None:
            break
        again.append(chunk)  # until it is known to be in the pool
        waiting[pool.submit(_run_chunk, chunk)] = chunk
        again.pop()


class JobPool:
    """Runs jobs as `run_jobs` does, again and again in the same processes or on one cluster.

    Parameters
    ----------
    processes, cluster_address, files
        As of `run_jobs`.
    """

    def __init__(
        self,
        processes: int = 1,
        cluster_address: str | None = None,
        files: PointFiles = NO_FILES,
    ) -> None:
        self._processes, self._address, self._files = processes, cluster_address, files
        self._open = ExitStack()
        self._workers: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Yield the key and the row of every job, as they are finished.

        Raises
        ------
        RidgelineError
            If workers die again and again, or the cluster cannot be reached.
        """
        if self._address is None and self._processes == 1:
            yield from run_jobs(jobs)
        elif self._address is not None:
            yield from self._on_cluster(jobs)
        else:
            yield from self._in_processes(jobs)

    def _on_cluster(self, jobs: Sequence[Job]) -> Iterator[Done]:
        from distributed import as_completed  # type: ignore[import-not-found,unused-ignore]

        if self._workers is None:
            self._workers = self._open.enter_context(_connected(str(self._address)))
        waiting = [_submitted(self._workers, _run_chunk, [job], self._files) for job in jobs]
        for future in as_completed(waiting):
            yield from future.result()

    def _in_processes(self, jobs: Sequence[Job]) -> Iterator[Done]:
        from concurrent.futures import as_completed
        from concurrent.futures.process import BrokenProcessPool

        left, deaths = dict(jobs), 0
        while left:
            if self._workers is None:
                self._workers = self._open.enter_context(workers(self._processes))
            try:
                waiting = [self._workers.submit(_run_chunk, [job]) for job in left.items()]
                for future in as_completed(waiting):
                    for key, row in future.result():
                        del left[key]
                        deaths = 0
                        yield key, row
            except BrokenProcessPool as error:
                self._workers = None
                deaths += 1
                if deaths == _MAX_DEATHS:
                    raise RidgelineError(_KILLED) from error


@contextmanager
def workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of new processes, which end with the block or this process, at work or not."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # A fork would copy the locks of numba's threads.
    context = multiprocessing.get_context("spawn")
    # No event: to set one waits for all who wait for it, and a worker may have ended meanwhile.
    over = context.RawValue("b", 0)
    pool = ProcessPoolExecutor(processes, context, _start_worker, (os.getpid(), over))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        over.value = 1


def _start_worker(parent: int, over: c_byte) -> None:
    """Leave Ctrl-C to the parent, and end when it is over there, or with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", FutureWarning)  # the parent has told of renamed fields
    gc.set_threshold(_GARBAGE)

    def watch() -> None:
        while os.getppid() == parent and not over.value:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def mapped(
    function: Callable[[T], R], items: Sequence[T], processes: int = 1, address: str | None = None,
    advance: Callable[[int], None] = lambda count: None, files: PointFiles = NO_FILES,
) -> list[R]:  # fmt: skip
    """Return what a function makes of each item, in their order, wherever it is called.

    Parameters
    ----------
    function
        Of a module, as items and answers travel to other processes.
    processes
        On this machine.
    address
        Of a Dask scheduler, whose workers are used instead.
    advance
        Told that one more is done, in the order of the items.
    files
        What the function reads, of which these workers must have the same.

    Raises
    ------
    RidgelineError
        As the function; if workers die again and again, or the cluster cannot be reached.
    """
    if address is not None:
        with _connected(address) as client:
            futures = [_submitted(client, function, item, files) for item in items]
            return _counted((future.result() for future in futures), advance)
    if processes == 1 or len(items) < 2:
        return _counted(map(function, items), advance)
    from concurrent.futures.process import BrokenProcessPool

    try:
        with workers(min(processes, len(items))) as pool:
            return _counted(pool.map(function, items), advance)
    except BrokenProcessPool as error:
        raise RidgelineError(
            "a worker process was killed (out of memory?); try fewer --processes"
        ) from error


def _counted(answers: Iterable[R], advance: Callable[[int], None]) -> list[R]:
    """Return answers as a list, and tell of each."""
    found = []
    for answer in answers:
        found.append(answer)
        advance(1)
    return found


def _on_cluster(jobs: Iterable[Job], address: str, files: PointFiles) -> Iterator[Done]:
    """Run chunks on the workers of a Dask scheduler; those of a worker that dies run elsewhere.

    Workers may come and go; while there is none, the scheduler waits for one.
    """
    with _connected(address) as client:
        from distributed import as_completed  # type: ignore[import-not-found,unused-ignore]

        chunks = _chunks(jobs)
        submit = partial(_submitted, client, _run_chunk, files=files)
        ahead = _AHEAD * max(1, sum(client.nthreads().values()))
        running = as_completed([submit(chunk) for chunk in islice(chunks, ahead)])
        for future in running:
            yield from future.result()
            if (chunk := next(chunks, None)) is not None:
                running.add(submit(chunk))


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Give a client of a Dask scheduler, and say in words how it can be lost.

    Parameters
    ----------
    address
        Or the file that ``dask scheduler --scheduler-file`` wrote, whose name ends in .json.
    """
    try:
        from concurrent.futures import CancelledError

        from distributed import (  # type: ignore[import-not-found,unused-ignore]
            Client,
            KilledWorker,
        )
    except ImportError as error:
        raise ConfigError(
            "running on a cluster needs Dask: pip install 'ridgeline[cluster]'",
            field="--cluster-address",
        ) from error
    is_file = address.endswith(".json")
    if is_file and not Path(address).is_file():  # which a client would wait for
        raise ConfigError(f"there is no file {address}", field="--cluster-address")
    try:
        client = Client(timeout=10, **{"scheduler_file" if is_file else "address": address})
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no scheduler answers there: {error}", field="--cluster-address"
        ) from error
    with closing(client):
        try:
            yield client
        except KilledWorker as error:
            raise RidgelineError(
                "the workers of the cluster died again and again (out of memory?)"
            ) from error
        except (CancelledError, OSError) as error:
            raise RidgelineError(
                f"the scheduler at {address} was lost; what was finished is kept"
            ) from error


def _submitted(client: Any, function: Callable[[T], Any], item: T, files: PointFiles) -> Any:
    """Give a cluster one item of work; return its future."""
    return client.submit(
        _called_remotely, function, item, __version__, files, pure=False, retries=_MAX_DEATHS
    )


def _called_remotely(
    function: Callable[[T], R], item: T, version: str, files: PointFiles = NO_FILES
) -> R:
    """Call a function on another machine; another version or file would find something else."""
    if version != __version__:
        raise RidgelineError(f"a worker has ridgeline {__version__}; this is {version}")
    load_named()
    check_same_files(files)
    return function(item)
