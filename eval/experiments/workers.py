"""Measure how even values are over requests to a service with one or several workers.

    python -m eval.experiments.workers
    python -m eval.experiments.workers --requests 41 --json FILE

Each request asks for one image of the same prompt and goes to a random worker. The result is the
difference between the numbers of images with each of two values that should be even: its mean over
many runs and the middle 95% of runs. `Balancer` remembers assigned values, `Balancer.at` takes an
index from a counter that all workers share, and `balance_prompts` without a seed samples values for
each request independently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import vldebias
from eval.tables import parser, run
from vldebias.measure.metric import Metric
from vldebias.measure.resampling import percentile_interval
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.wording import Balancer

PROMPT = "A CEO in an office"
VALUE = "female"
RUNS = 200
APART = Metric("apart", "images of one value more than of the other", "bias", "lower")
Request = Callable[[int], str]  # returns the assigned value for the index of a request


def balancers(workers: int, rng: np.random.Generator) -> Request:
    """Return a function that assigns values with several workers, each with its own Balancer."""
    several = [Balancer("gender", seed=int(rng.integers(1 << 31))) for _ in range(workers)]

    def answer(index: int) -> str:
        worker = several[rng.integers(workers)]
        return str(worker.next([PROMPT]).values[0])

    return answer


def one(rng: np.random.Generator) -> Request:
    """Return a function that assigns values with one worker."""
    return balancers(1, rng)


def four(rng: np.random.Generator) -> Request:
    """Return a function that assigns values with four workers."""
    return balancers(4, rng)


def sixteen(rng: np.random.Generator) -> Request:
    """Return a function that assigns values with sixteen workers."""
    return balancers(16, rng)


def shared_counter(rng: np.random.Generator) -> Request:
    """Return a function that assigns values with workers that share a counter and a seed."""
    balancer = Balancer("gender", seed=int(rng.integers(1 << 31)))
    return lambda index: str(balancer.at(PROMPT, index).values[0])


def drawn_anew(rng: np.random.Generator) -> Request:
    """Return a function that assigns values with workers that have no memory."""

    def answer(index: int) -> str:
        seed = int(rng.integers(1 << 31))
        return str(vldebias.balance_prompts(PROMPT, "gender", seed=seed).values[0])

    return answer


ARRANGEMENTS = {
    "one worker, a Balancer": one,
    "4 workers, a Balancer each": four,
    "16 workers, a Balancer each": sixteen,
    "any number, Balancer.at and a shared counter": shared_counter,
    "any number, each request drawn anew": drawn_anew,
}


def apart(answer: Request, requests: int) -> int:
    """Return the difference between the numbers of images of the two values."""
    values = [answer(index) for index in range(requests)]
    return abs(2 * values.count(VALUE) - requests)


def measure(requests: int, seed: int = 0) -> Iterator[TaskResult]:
    """Yield the difference between the values in each arrangement."""
    part = TaskResult(
        TaskProvenance(
            task="service",
            description=f"{requests} requests of one image each, {RUNS} runs",
            seeds=[seed],
        )
    )
    for name, arranged in ARRANGEMENTS.items():
        rng = np.random.default_rng(seed)
        totals = np.array([apart(arranged(rng), requests) for _ in range(RUNS)], dtype=float)
        counts = {"runs": RUNS, "requests": requests}
        part.add(APART, name, float(totals.mean()), percentile_interval(totals), n=counts)
    yield part


def main() -> None:
    """Measure all arrangements."""
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=100, help="images of one prompt")
    args = options.parse_args()
    run("workers", lambda: measure(args.requests), args.json)


if __name__ == "__main__":
    main()
