"""A third device amount is one row of the table: everything else follows from the row."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "tests",
    [
        ["tests/integration/third_amount_checks.py"],
        # Stories of the ledger with pods that have a part of the encoder too.
        ["tests/unit/ledger/test_model.py", "-k", "through_a_long_life and (0 or 1 or 2 or 3)"],
        ["tests/unit/core/test_decide.py", "tests/unit/core/test_shadow_books.py"],
    ],
    ids=["surfaces", "ledger stories", "decisions"],
)
def test_a_third_amount_is_one_row(tests: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.support.third_amount"]
    run = subprocess.run(
        [*command, *tests], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
