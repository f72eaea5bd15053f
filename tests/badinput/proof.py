"""The proof that no input harms: malformed HTTP, Schemathesis, stalled clients, fuzzed decoders.

python -m tests.badinput.proof --ci | --inputs N [--seed S] [--first K]: prints what was sent by
kind and what came of it; ends with 1 on a finding. `--inputs 1 --first K --seed S` repeats one.
"""

import argparse
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
from tests.badinput.world import bad_world

CI_INPUTS = 20_000
CI_EXAMPLES = 25
CI_RUNS = 60_000
CLIENTS = 1000
STALLED_S = 12.0
"""Longer than a request may take, so that each stalled client is closed once at least."""

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.badinput.proof")
    parser.add_argument("--ci", action="store_true", help=f"{CI_INPUTS} inputs, a few minutes")
    parser.add_argument("--inputs", type=int, default=CI_INPUTS)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    asked = parser.parse_args()
    seed = asked.seed or (1 if asked.ci else random.randrange(1, 10**9))
    scale = max(asked.inputs / CI_INPUTS, 0.01)
    print(f"seed {seed}", flush=True)
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpushare-badinput-") as folder:
        with bad_world(Path(folder)) as world:
            result = flood(world, asked.first, asked.inputs, seed)
            _told(
                f"malformed HTTP, {result.sent} inputs",
                result.kinds,
                result.seconds,
                result.findings,
            )
            print(
                "  answers: " + ", ".join(f"{n} x {s}" for s, n in sorted(result.statuses.items()))
            )
            findings += result.findings
            begin = time.monotonic()
            sent, wrong = conform(world, max(1, int(CI_EXAMPLES * min(scale, 20))), seed)
            _told(
                f"Schemathesis, {sum(sent.values())} calls", sent, time.monotonic() - begin, wrong
            )
            findings += wrong
            begin = time.monotonic()
            done, wrong = stalled(world, CLIENTS, STALLED_S)
            _told("stalled clients", done, time.monotonic() - begin, wrong)
            findings += wrong
        findings += _fuzz(Path(folder), int(CI_RUNS * scale), seed)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


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
