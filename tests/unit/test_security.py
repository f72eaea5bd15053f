"""SECURITY.md names tests: they are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+?)(?:::(\w+))?`", TEXT)
    assert len(named) > 30
    for file, name in named:
        path = ROOT / file
        assert path.exists(), file
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name}"
    for file in re.findall(r"`(\w+\.txt)` there", TEXT):
        assert (ROOT / "tests/unit/ledger/scenarios" / file).exists(), file
