"""`python -m tests.simulation.proof`: many stories, all mutants, every order, and what came of it.

--seeds FROM:TO   these stories alone, on all cores; a failing one is printed, made short;
                  Ctrl-C ends them early, and what was told until then counts
--ci              what every change has to pass: orders, mutants, 8,000 stories
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
from tests.simulation.hunt import Found, all_mutants, hunt
from tests.simulation.orders import THREE, count_orders
from tests.simulation.story import of_seed, replay, shrink, tell
from tests.support.figures import PROOF_FIGURES, commit, record, recorded, renew

STEPS = 200
CI_SEEDS = 8_000
"""What 5 minutes allow on two cores."""
ALL_ORDERS = 756_756
_CHUNK = 10
_RUNS = Path(__file__).parent / "runs.json"


@dataclass
class Run:
    """What came of a range of seeds."""

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
    args = parser.parse_args(argv)
    if args.replay is not None:
        print(replay(of_seed(args.replay, args.steps)))
        return 0
    first, after = args.seeds or (0, CI_SEEDS)
    run = Run(commit(), datetime.now(UTC).isoformat(timespec="minutes"), first, after, args.steps)
    good = True
    with ProcessPoolExecutor(args.jobs, initializer=_ignore_interrupts) as pool:
        whole = args.ci or (args.seeds is None and args.mutants is None)
        orders = pool.submit(_orders) if whole else None
        if whole or args.mutants is not None:
            good &= _mutants(pool, run, args.mutants or ())
        if args.mutants is None:
            good &= _stories(pool, run, args.jobs)
        if orders is not None:
            good = good and orders.result()
    if args.record:
        renew(PROOF_FIGURES, "the simulation", figures(record(_RUNS, asdict(run))))
    return 0 if good else 1


def _orders() -> bool:
    began = time.monotonic()
    orders = count_orders(THREE.copy())
    print(f"orders: {orders:,} of three binds, each run ({time.monotonic() - began:.0f} s)")
    return orders == ALL_ORDERS


def _mutants(pool: ProcessPoolExecutor, run: Run, names: Sequence[str]) -> bool:
    began = time.monotonic()
    names_shown = [mutant.name for mutant in all_mutants() if not names or mutant.name in names]
    seeds = last_found(recorded(_RUNS))
    for item in pool.map(partial(_hunt, steps=run.steps, known_seeds=seeds), names_shown):
        mutant = item.mutant_name
        run.mutants[mutant] = item.by
        by = "NOT FOUND" if item.by is None else item.by
        by = "a test" if isinstance(item.by, str) else by
        print(f"  {item.fault:4} {mutant:32} {by:>9}  {item.error[:90]}", flush=True)
    killed = sum(by is not None for by in run.mutants.values())
    print(f"mutants: {killed} of {len(names_shown)} found ({time.monotonic() - began:.0f} s)")
    return killed == len(names_shown)


@dataclass(frozen=True, slots=True)
class _Hunted:
    fault: str
    mutant_name: str
    by: int | str | None
    error: str


def _hunt(name: str, steps: int, known_seeds: dict[str, int | str]) -> _Hunted:
    mutant = next(mutant for mutant in all_mutants() if mutant.name == name)
    seed = known_seeds.get(name)
    hunt_result: Found = hunt(mutant, steps, known_seed=seed if isinstance(seed, int) else None)
    return _Hunted(mutant.fault, name, hunt_result.by, hunt_result.error)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stories(pool: ProcessPoolExecutor, run: Run, jobs: int) -> bool:
    began, request = time.monotonic(), run.after
    fired: Counter[str] = Counter()
    chunks = list(_chunks(run.first, request))
    output = zip(chunks, pool.map(partial(_tell, steps=run.steps), chunks), strict=True)
    run.after = run.first
    with tqdm(total=request - run.first, unit="story", disable=None, leave=False) as bar:
        try:
            for (start, after), (errors, some) in output:
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
    return not run.violations and run.after == request


def _tell(seeds: tuple[int, int], steps: int) -> tuple[dict[int, str], Counter[str]]:
    errors: dict[int, str] = {}
    fired: Counter[str] = Counter()
    for seed in range(*seeds):
        tell_result = tell(of_seed(seed, steps))
        fired += tell_result.fired
        if tell_result.error:
            errors[seed] = tell_result.error
    return errors, fired


def _chunks(first: int, after: int) -> Iterator[tuple[int, int]]:
    for start in range(first, after, _CHUNK):
        yield start, min(start + _CHUNK, after)


def _range(text: str) -> tuple[int, int]:
    first, _, after = text.partition(":")
    return int(first), int(after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
