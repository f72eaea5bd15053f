"""The promise on coverage: 95 of 100 branches of core, wire and the ledger, by the run before.

`coverage report --fail-under` counts lines and branches together, and lines are the easy part.
"""

import contextlib
import io
import json
import sys

from coverage import Coverage

LEAST = 95.0
PARTS = {
    "core": "gpushare/core/*",
    "wire": "gpushare/wire/*",
    "ledger": "gpushare/ledger/*",
}


def main() -> int:
    """The exit code: 0 where every part is covered; the branches missed are printed."""
    coverage = Coverage()
    coverage.load()
    good = True
    for part, files in PARTS.items():
        report = io.StringIO()
        with contextlib.redirect_stdout(report):
            coverage.json_report(include=[files], outfile="-")
        document = json.loads(report.getvalue())
        total = document["totals"]
        percent = 100 * total["covered_branches"] / (total["num_branches"] or 1)
        good = good and percent >= LEAST
        print(f"{part:<8}{percent:6.1f} % of {total['num_branches']} branches (>= {LEAST:g})")
        for name, result in sorted(document["files"].items()):
            missed = ", ".join(f"{a}->{b}" for a, b in result["missing_branches"])
            if missed:
                print(f"    {name}: {missed}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
