"""The proof that no input harms: malformed HTTP, Schemathesis, stalled clients, fuzzed decoders.

python -m tests.badinput.proof --ci | --inputs N [--minutes M] [--seed S] [--first K]: prints what
was sent by kind and what came of it; ends with 1 on a finding. `--inputs 1 --first K --seed S`
repeats one.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.badinput.conforming import conform
from tests.badinput.flood import flood
from tests.badinput.stalled import stalled
from tests.badinput.world import BadWorld, bad_world

CI_INPUTS = 20_000
CI_EXAMPLES = 25
CI_RUNS = 60_000
CLIENTS = 1000
STALLED_S = 12.0
"""Longer than a request may take, so that each stalled client is closed once at least."""

ROOT = Path(__file__).parents[2]


def main() -> int:
    asked = _asked()
    seed = asked.seed or (1 if asked.ci else random.randrange(1, 10**9))
    scale = max(asked.inputs / CI_INPUTS, 0.01)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpushare-badinput-") as folder:
        with bad_world(Path(folder)) as world:
            findings = _flood(world, asked, seed)
            findings += _conform(world, max(1, int(CI_EXAMPLES * min(scale, 4))), seed)
            findings += _stall(world)
        findings += _fuzz(Path(folder), int(CI_RUNS * min(scale, 10)), seed)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.badinput.proof")
    parser.add_argument("--ci", action="store_true", help=f"{CI_INPUTS} inputs, a few minutes")
    parser.add_argument("--inputs", type=int, default=CI_INPUTS)
    parser.add_argument("--minutes", type=float, default=math.inf, help="send no longer than this")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    return parser.parse_args()


def _flood(world: BadWorld, asked: argparse.Namespace, seed: int) -> list[str]:
    result = flood(world, asked.first, asked.inputs, seed, 60 * asked.minutes)
    part = f"malformed HTTP, {result.sent} inputs"
    _told(part, result.kinds, result.seconds, result.findings)
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(result.statuses.items()))
    print(f"  answers: {answers}")
    return result.findings


def _conform(world: BadWorld, examples: int, seed: int) -> list[str]:
    begin = time.monotonic()
    sent, findings = conform(world, examples, seed)
    _told(f"Schemathesis, {sum(sent.values())} calls", sent, time.monotonic() - begin, findings)
    return findings


def _stall(world: BadWorld) -> list[str]:
    begin = time.monotonic()
    done, findings = stalled(world, CLIENTS, STALLED_S)
    _told("stalled clients", done, time.monotonic() - begin, findings)
    return findings


def _fuzz(folder: Path, runs: int, seed: int) -> list[str]:
    """What Atheris found on the decoders; it ends its process itself."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "tests.badinput.fuzz", str(folder / "fuzz"), str(runs), "3600"]
    done = subprocess.run(
        [*command, str(seed % 2**31)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    findings = []
    if done.returncode:
        findings.append(f"Atheris ended with {done.returncode}:\n{done.stderr[-4000:]}")
        found = (folder / "fuzz").glob("found-*")
        findings += [f"  {each.name}: {each.read_bytes()[:500]!r}" for each in found]
    last = [line for line in done.stderr.splitlines() if line.startswith("#") and "DONE" in line]
    _told("Atheris on the decoders", Counter(runs=runs), time.monotonic() - begin, findings)
    print(f"  {' '.join(last)}")
    return findings


def _told(part: str, sent: Counter[str], seconds: float, findings: list[str]) -> None:
    print(f"{part}: {seconds:.0f} s, {len(findings)} findings")
    for kind, count in sorted(sent.items()):
        print(f"  {count:8} {kind}")
    for finding in findings:
        print(f"  FOUND {finding}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
