"""Where candidates are timed: on the call's GPU, on several of this host, or on machines of a Dask or Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..errors import LaunchError, TileError
from ..lazy import Lazy
from ..runtime import driver
from .measuring import Call, Candidate, NotStarted, time_share

futures = Lazy("concurrent.futures")

Outcome = tuple[dict[int, float], dict[int, TileError]]
Tell = Callable[[int, "float | None"], None]


def check_workers(workers: Any) -> None:
    """LaunchError for what is not device numbers, a client of Dask or the module of Ray."""
    if _is_dask(workers) or _is_ray(workers):
        return
    numbers = isinstance(workers, (list, tuple, range)) and len(workers) > 0
    if not numbers or not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in workers):
        raise LaunchError("workers is a list of GPUs by number, a dask.distributed.Client, or the module ray, "
                          f"not {workers!r}")
    if len(set(workers)) < len(workers):
        raise LaunchError(f"workers names a GPU twice: {list(workers)}")


def _is_dask(workers: Any) -> bool:
    return callable(getattr(workers, "submit", None)) and callable(getattr(workers, "nthreads", None))


def _is_ray(workers: Any) -> bool:
    return callable(getattr(workers, "remote", None)) and callable(getattr(workers, "cluster_resources", None))


def time_on(workers: Any, candidates: dict[int, Candidate], call: Call, device: int, limit: float,
            seconds: float | None, tell: Tell) -> Outcome:
    """The milliseconds per launch of candidates, and the errors of those that fail, on these workers. Each has a share.
    NotStarted if none of them can time any."""
    if workers is None:
        return time_share(candidates, call, device, limit, seconds, tell)
    gpu = driver.name(device)
    if _is_dask(workers):
        return _collect(_on_dask(workers, candidates, (call, gpu, limit, seconds)), tell)
    if _is_ray(workers):
        return _collect(_on_ray(workers, candidates, (call, gpu, limit, seconds)), tell)
    others = [d for d in workers if driver.name(d) != gpu]
    if others:
        raise LaunchError(f"workers are GPUs of one kind, and device {others[0]} is {driver.name(others[0])}, "
                          f"not {gpu}")
    with futures.ThreadPoolExecutor(len(workers)) as pool:
        shares = [(share, pool.submit(time_share, share, call, d, limit, seconds, tell))
                  for d, share in zip(workers, _shares(candidates, len(workers))) if share]
        return _collect([(share, job.result, lambda: None) for share, job in shares], lambda number, ms: None)


def _shares(candidates: dict[int, Candidate], count: int) -> list[dict[int, Candidate]]:
    """The candidates dealt out in turns, since neighbours in a space resemble each other."""
    items = list(candidates.items())
    return [dict(items[n::count]) for n in range(count)]


def time_as_worker(share: dict[int, Candidate], call: Call, gpu: str, limit: float, seconds: float | None) -> Outcome:
    """`time_share` on the first GPU of a worker of a cluster. NotStarted if it is another GPU than that of the call."""
    found = driver.name(0) if driver.available() else "no GPU"
    if found != gpu:
        raise NotStarted(f"the worker has {found}, and the call is for {gpu}")
    return time_share(share, call, 0, limit, seconds)  # the library frees the arrays, which it may share among tasks


def _on_dask(client: Any, candidates: dict[int, Candidate], given: tuple[Any, ...]) -> list[Any]:
    """Shares on the workers of a Dask cluster, one for each, so that none has two at the same time."""
    addresses = list(client.nthreads())
    if not addresses:
        raise LaunchError("the Dask cluster has no workers")
    call = client.scatter(given[0], broadcast=True)
    jobs = [(share, client.submit(time_as_worker, share, call, *given[1:], workers=[address], pure=False))
            for address, share in zip(addresses, _shares(candidates, len(addresses))) if share]
    return [(share, job.result, job.cancel) for share, job in jobs]


def _on_ray(ray: Any, candidates: dict[int, Candidate], given: tuple[Any, ...]) -> list[Any]:
    """Shares on the GPUs of a Ray cluster, one for each."""
    count = int(ray.cluster_resources().get("GPU", 0))
    if not count:
        raise LaunchError("the Ray cluster has no GPU")
    call, task = ray.put(given[0]), ray.remote(num_gpus=1)(time_as_worker)
    jobs = [(share, task.remote(share, call, *given[1:])) for share in _shares(candidates, count) if share]
    return [(share, partial(ray.get, job), partial(ray.cancel, job)) for share, job in jobs]


def _collect(jobs: list[tuple[Iterable[int], Callable[[], Any], Callable[[], Any]]], tell: Tell) -> Outcome:
    """The results of all shares, (candidates, get, cancel) each. If no worker can start, the first's error is raised;
    if some can, it is that of the others' candidates."""
    times: dict[int, float] = {}
    failed: dict[int, TileError] = {}
    problem: Any = None
    answered = False
    try:
        for numbers, get, _ in jobs:
            try:
                found, errors = get()
                answered = True
            except NotStarted as error:
                problem = getattr(error, "cause", error)  # Ray's error has the worker's, and a traceback as its text
                found, errors = {}, dict.fromkeys(numbers, problem)
            times |= found
            failed |= errors
            for n in (*found, *errors):
                tell(n, found.get(n))
    except BaseException:
        for _, _, cancel in jobs:
            cancel()
        raise
    if problem is not None and not answered:
        raise problem
    return times, failed


__all__ = ["check_workers", "time_as_worker", "time_on"]
