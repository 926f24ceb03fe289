"""How even do values stay over the requests of a service? One worker, several, and none with a
memory.

    python -m eval.experiments.workers
    python -m eval.experiments.workers --requests 41 --json FILE

Each request asks for one image of one prompt; a request goes to a random worker. Measured is how
many images more one of two even values has than the other, over many runs: the mean and the middle
95 % of the runs. `Balancer` remembers what it dealt, `Balancer.at` takes the index of a counter
that all workers share, and `balance_prompts` without a seed draws each request anew.
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
Request = Callable[[int], str]  # index of a request -> the value that was dealt


def balancers(workers: int, rng: np.random.Generator) -> Request:
    """Return how workers answer of which each has a Balancer."""
    several = [Balancer("gender", seed=int(rng.integers(1 << 31))) for _ in range(workers)]

    def answer(index: int) -> str:
        worker = several[rng.integers(workers)]
        return str(worker.next([PROMPT]).values[0])

    return answer


def one(rng: np.random.Generator) -> Request:
    """Return how a single worker answers."""
    return balancers(1, rng)


def four(rng: np.random.Generator) -> Request:
    """Return how four workers answer."""
    return balancers(4, rng)


def sixteen(rng: np.random.Generator) -> Request:
    """Return how sixteen workers answer."""
    return balancers(16, rng)


def shared_counter(rng: np.random.Generator) -> Request:
    """Return how any number of workers answer that share a counter and a seed."""
    balancer = Balancer("gender", seed=int(rng.integers(1 << 31)))
    return lambda index: str(balancer.at(PROMPT, index).values[0])


def drawn_anew(rng: np.random.Generator) -> Request:
    """Return how workers without a memory answer."""

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
    """Return how many images more one value has than the other."""
    values = [answer(index) for index in range(requests)]
    return abs(2 * values.count(VALUE) - requests)


def measure(requests: int, seed: int = 0) -> Iterator[TaskResult]:
    """Yield how far apart the values are in each arrangement."""
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
    """Measure the arrangements."""
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=100, help="images of one prompt")
    args = options.parse_args()
    run("workers", lambda: measure(args.requests), args.json)


if __name__ == "__main__":
    main()
