"""`python -m tests.simulation.proof`: many stories, all mutants, every order, and the results.

--seeds FROM:TO   these stories alone, on all cores; a failing one is printed, made short;
                  Ctrl-C ends the run early, and the stories so far count
--ci              the bar for every change: orders, mutants, 8,000 stories
--replay SEED     one story in words
--record          keep the outcome in runs.json, and write docs/research/proof-figures.md
"""

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tqdm import tqdm

from tests.simulation.figures import figures, last_found
from tests.simulation.hunt import HuntResult, all_mutants, hunt
from tests.simulation.orders import THREE, count_orders
from tests.simulation.story import of_seed, replay, shrink, tell
from tests.support.figures import PROOF_FIGURES, commit, record, recorded, renew

STEPS = 200
CI_SEEDS = 8_000
"""As many as take 5 minutes on two cores."""
ALL_ORDERS = 756_756
_CHUNK = 10
_RUNS = Path(__file__).parent / "runs.json"


@dataclass
class ProofRun:
    """The results of a range of seeds."""

    commit: str
    when: str
    first: int
    after: int
    steps: int
    seconds: float = 0.0
    cores: int = 0
    violations: dict[int, str] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)
    mutants: dict[str, int | str | None] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """0: every promise was kept, and every mutant found."""
    parser = argparse.ArgumentParser(prog="proof", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=None, metavar="FROM:TO")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--replay", type=int, default=None, metavar="SEED")
    parser.add_argument("--mutants", nargs="*", default=None, metavar="NAME")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(argv)
    if options.replay is not None:
        print(replay(of_seed(options.replay, options.steps)))
        return 0
    first, after = options.seeds or (0, CI_SEEDS)
    run = ProofRun(
        commit(), datetime.now(UTC).isoformat(timespec="minutes"), first, after, options.steps
    )
    good = True
    with ProcessPoolExecutor(options.jobs, initializer=_ignore_interrupts) as pool:
        whole = options.ci or (options.seeds is None and options.mutants is None)
        orders = pool.submit(_orders) if whole else None
        if whole or options.mutants is not None:
            good &= _mutants(pool, run, options.mutants or ())
        if options.mutants is None:
            good &= _stories(pool, run, options.jobs)
        if orders is not None:
            good = good and orders.result()
    if options.record:
        renew(PROOF_FIGURES, "the simulation", figures(record(_RUNS, asdict(run))))
    return 0 if good else 1


def _orders() -> bool:
    began = time.monotonic()
    orders = count_orders(THREE.copy())
    print(f"orders: {orders:,} of three binds, each run ({time.monotonic() - began:.0f} s)")
    return orders == ALL_ORDERS


def _mutants(pool: ProcessPoolExecutor, run: ProofRun, names: Sequence[str]) -> bool:
    began = time.monotonic()
    names_to_hunt = [one.name for one in all_mutants() if not names or one.name in names]
    last_seeds = last_found(recorded(_RUNS))
    for hunted in pool.map(partial(_hunt, steps=run.steps, last_seeds=last_seeds), names_to_hunt):
        mutant = hunted.mutant_name
        run.mutants[mutant] = hunted.by
        by = "NOT FOUND" if hunted.by is None else hunted.by
        by = "a test" if isinstance(hunted.by, str) else by
        print(f"  {hunted.fault:4} {mutant:32} {by:>9}  {hunted.error[:90]}", flush=True)
    killed = sum(by is not None for by in run.mutants.values())
    print(f"mutants: {killed} of {len(names_to_hunt)} found ({time.monotonic() - began:.0f} s)")
    return killed == len(names_to_hunt)


@dataclass(frozen=True, slots=True)
class _Hunted:
    fault: str
    mutant_name: str
    by: int | str | None
    error: str


def _hunt(name: str, steps: int, last_seeds: dict[str, int | str]) -> _Hunted:
    mutant = next(one for one in all_mutants() if one.name == name)
    seed = last_seeds.get(name)
    outcome: HuntResult = hunt(mutant, steps, last_seed=seed if isinstance(seed, int) else None)
    return _Hunted(mutant.fault, name, outcome.by, outcome.error)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stories(pool: ProcessPoolExecutor, run: ProofRun, jobs: int) -> bool:
    began, first = time.monotonic(), run.after
    fired: Counter[str] = Counter()
    chunks = list(_chunks(run.first, first))
    outcomes = zip(chunks, pool.map(partial(_tell, steps=run.steps), chunks), strict=True)
    run.after = run.first
    with tqdm(total=first - run.first, unit="story", disable=None, leave=False) as bar:
        try:
            for (start, after), (errors, some) in outcomes:
                fired += some
                for seed, error in errors.items():
                    tqdm.write(f"seed {seed} breaks a promise: {error.partition(' ')[0]}")
                run.violations |= errors
                run.after = after
                bar.update(after - start)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            print(f"ended early, at seed {run.after}")
    run.seconds, run.cores, run.fired = round(time.monotonic() - began, 1), jobs, dict(fired)
    count = run.after - run.first
    for seed, error in list(run.violations.items())[:3]:
        story = shrink(of_seed(seed, run.steps), error)
        print(f"seed {seed} breaks a promise; the story, made short:\n{replay(story)}\n{story}")
    print(
        f"stories: seeds {run.first}:{run.after} x {run.steps} steps,"
        f" {len(run.violations)} violations, {sum(fired.values()):,} faults of {len(fired)} kinds,"
        f" {run.seconds:.0f} s ({count * run.steps / max(run.seconds, 0.1):,.0f} steps/s)"
    )
    return not run.violations and run.after == first


def _tell(seeds: tuple[int, int], steps: int) -> tuple[dict[int, str], Counter[str]]:
    errors: dict[int, str] = {}
    fired: Counter[str] = Counter()
    for seed in range(*seeds):
        outcome = tell(of_seed(seed, steps))
        fired += outcome.fired
        if outcome.error:
            errors[seed] = outcome.error
    return errors, fired


def _chunks(first: int, after: int) -> Iterator[tuple[int, int]]:
    for start in range(first, after, _CHUNK):
        yield start, min(start + _CHUNK, after)


def _range(text: str) -> tuple[int, int]:
    first, _, after = text.partition(":")
    return int(first), int(after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
