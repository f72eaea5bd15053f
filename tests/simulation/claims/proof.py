"""`python -m tests.simulation.claims.proof [FROM:TO]`: many stories of claims, and every mutant."""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor

from tests.simulation.claims.mutants import FOUND, MUTANTS
from tests.simulation.claims.story import tell
from tests.simulation.mutants.museum import Mutant

CI_SEEDS = 1_000
"""What CI has time for."""
SEEDS = 20_000
MUTANT_SEEDS = 3_000
"""Seeds within which every mutant has to be found."""


def hunt(mutant: Mutant, seeds: int = MUTANT_SEEDS) -> tuple[int | None, str]:
    """Return the seed that finds the mutant, and the promise that it breaks.

    The seed that found it before is tried first.
    """
    for seed in (FOUND.get(mutant.name, 0), *range(seeds)):
        with mutant.at_large():
            error = tell(seed).error
        if error and not tell(seed).error:
            return seed, error
    return None, ""


def prove(pool: Executor, first: int, after: int) -> bool:
    """Tell these stories and hunt all mutants; return whether all is as it should be."""
    began = time.monotonic()
    good, fired, landed = True, Counter[str](), 0
    for seed, told in zip(
        range(first, after), pool.map(tell, range(first, after), chunksize=50), strict=True
    ):
        fired += Counter(told.fired)
        landed += told.landed
        if told.error:
            good = False
            print(f"claims: seed {seed} breaks a promise: {told.error}")
    print(
        f"claims: seeds {first}:{after}, {landed:,} allocations, {fired.total():,} steps and faults"
        f" of {len(fired)} kinds ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    began, found = time.monotonic(), 0
    names = [each.name for each in MUTANTS]
    for name, (by, error) in zip(names, pool.map(_hunt, names), strict=True):
        found += by is not None
        print(f"  {name:36} {'NOT FOUND' if by is None else by:>9}  {error[:80]}", flush=True)
    print(f"claims: {found} of {len(names)} mutants found ({time.monotonic() - began:.0f} s)")
    return good and found == len(names)


def _hunt(name: str) -> tuple[int | None, str]:
    return hunt(next(each for each in MUTANTS if each.name == name))


def main(argv: Sequence[str]) -> int:
    """0: every promise was kept, and every mutant found."""
    first, _, after = (argv[0] if argv else f"0:{SEEDS}").partition(":")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return 0 if prove(pool, int(first), int(after)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
