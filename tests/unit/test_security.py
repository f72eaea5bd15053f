"""The tests that SECURITY.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there() -> None:
    test_names = re.findall(r"`(tests/[\w/.]+?)(?:::(\w+))?`", TEXT)
    assert len(test_names) > 30
    for file, name in test_names:
        path = ROOT / file
        assert path.exists(), file
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name}"
    for file in re.findall(r"`(\w+\.txt)` there", TEXT):
        assert (ROOT / "tests/unit/ledger/scenarios" / file).exists(), file
