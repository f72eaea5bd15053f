"""The proof that no input does harm: malformed HTTP, stalled clients, repeated large inputs,
slow-downs with size, fuzzed decoders.

python -m tests.badinput.proof --ci | --inputs N [--minutes M] [--seed S] [--first K] [--record]:
prints the inputs by kind and the results; exits with 1 on a finding. `--inputs 1 --first K --seed
S` repeats one; `--record` keeps the outcome in runs.json and docs/research/proof-figures.md.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.badinput.flood import flood
from tests.badinput.slow import slow_downs
from tests.badinput.stalled import stalled
from tests.badinput.staying import stays
from tests.badinput.world import BadWorld, bad_world
from tests.support.figures import PROOF_FIGURES, ROOT, commit, record, renew

CI_INPUTS = 20_000
CI_RUNS = 60_000
CLIENTS = 1000
STALLED_S = 12.0
"""Longer than a request may take, so that each stalled client is closed once at least."""

_RUNS = Path(__file__).parent / "runs.json"


@dataclass
class FuzzRun:
    """The result of a run. sent: inputs by part; kinds, statuses: of the malformed HTTP."""

    commit: str
    when: str
    seed: int
    first: int
    sent: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    request = _asked()
    seed = request.seed or (1 if request.ci else random.randrange(1, 10**9))
    scale = max(request.inputs / CI_INPUTS, 0.01)
    print(f"seed {seed}", flush=True)
    run = FuzzRun(commit(), datetime.now(UTC).isoformat(timespec="minutes"), seed, request.first)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpushare-badinput-") as folder:
        with bad_world(Path(folder)) as world:
            _flood(world, request, run)
            _stay(world, run)
            _stall(world, run)
        _slow(run)
        _fuzz(Path(folder), int(CI_RUNS * min(scale, 10)), run)
    run.seconds = round(time.monotonic() - begin, 1)
    print(f"{len(run.findings)} findings")
    if request.record:
        renew(PROOF_FIGURES, "bad input", _figures(record(_RUNS, asdict(run))))
    return 1 if run.findings else 0


def _figures(runs: list[dict[str, Any]]) -> str:
    """Return the runs as a table, with sums over all runs."""
    parts = list(runs[-1]["sent"])
    lines = [f"| seed, first | {' | '.join(parts)} | findings | seconds | commit | when |"]
    lines.append("| --- " * (len(parts) + 5) + "|")
    kinds: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    for run in runs:
        kinds.update(run["kinds"])
        statuses.update(run["statuses"])
        body = " | ".join(f"{run['sent'].get(part, 0):,}" for part in parts)
        lines.append(
            f"| {run['seed']}, {run['first']} | {body} | {len(run['findings'])}"
            f" | {run['seconds']:.0f} | {run['commit']} | {run['when']} |"
        )
    answers = _counted(sorted(statuses.items()))
    together = f"Together {kinds.total():,} malformed inputs of {len(kinds)} kinds."
    return "\n".join([*lines, "", together, f"Answers: {answers}."])


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.badinput.proof")
    parser.add_argument("--ci", action="store_true", help=f"{CI_INPUTS} inputs, a few minutes")
    parser.add_argument("--inputs", type=int, default=CI_INPUTS)
    parser.add_argument("--minutes", type=float, default=math.inf, help="send no longer than this")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--record", action="store_true", help="keep what came of it")
    return parser.parse_args()


def _flood(world: BadWorld, request: argparse.Namespace, run: FuzzRun) -> None:
    result = flood(world, request.first, request.inputs, run.seed, 60 * request.minutes)
    run.kinds, run.statuses = dict(result.kinds), dict(result.statuses)
    _note(run, "malformed HTTP", result.sent, result.kinds, result.seconds, result.findings)
    print(f"  answers: {_counted(sorted(result.statuses.items()))}")


def _stall(world: BadWorld, run: FuzzRun) -> None:
    begin = time.monotonic()
    finished, findings = stalled(world, CLIENTS, STALLED_S)
    _note(run, "stalled clients", CLIENTS, finished, time.monotonic() - begin, findings)


def _stay(world: BadWorld, run: FuzzRun) -> None:
    begin = time.monotonic()
    body, findings = stays(world)
    _note(run, "large, again", body.total(), body, time.monotonic() - begin, findings)


def _slow(run: FuzzRun) -> None:
    begin = time.monotonic()
    tries, findings = slow_downs()
    counts = {"inputs stretched": tries}
    _note(run, "slow-downs", tries, counts, time.monotonic() - begin, findings)


def _fuzz(folder: Path, runs: int, run: FuzzRun) -> None:
    """The findings of Atheris on the decoders, in another process."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "tests.badinput.fuzz", str(folder / "fuzz"), str(runs), "3600"]
    finished = subprocess.run(
        [*command, str(run.seed % 2**31)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    findings = []
    if finished.returncode:
        findings.append(f"Atheris ended with {finished.returncode}:\n{finished.stderr[-4000:]}")
        result = (folder / "fuzz").glob("found-*")
        findings += [f"  {item.name}: {item.read_bytes()[:500]!r}" for item in result]
    last = [
        line for line in finished.stderr.splitlines() if line.startswith("#") and "DONE" in line
    ]
    _note(run, "Atheris", runs, {"runs": runs}, time.monotonic() - begin, findings)
    print(f"  {' '.join(last)}")


def _note(  # noqa: PLR0917 -- each is of its own type
    run: FuzzRun,
    part: str,
    body: int,
    kinds: Mapping[str, int],
    seconds: float,
    findings: list[str],
) -> None:
    run.sent[part] = body
    run.findings += findings
    print(f"{part}, {body:,}: {seconds:.0f} s, {len(findings)} findings")
    for kind, count in sorted(kinds.items()):
        print(f"  {count:8} {kind}")
    for finding in findings:
        print(f"  FOUND {finding}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
