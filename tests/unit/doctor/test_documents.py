"""docs/doctor.md explains each check, and no other."""

import re
from pathlib import Path

from gpushare.doctor.report import run_checks
from tests.unit.doctor.facts import healthy

DOCUMENT = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_the_tables_have_every_check_and_no_other() -> None:
    items = set(re.findall(r"^\| `([a-z]+(?:-[a-z]+)*)` \|", DOCUMENT, re.MULTILINE))
    line = {finding.check for finding in run_checks(healthy())}
    of_claims = {check for check in items if check.startswith("claims-")}  # see test_claims.py
    asked_for = {"certificates", "rights-useful", "rights-moves", "placeholders", "kueue"}
    assert items == line | asked_for | of_claims
