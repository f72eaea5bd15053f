"""The published figures beside ours: every cell and its difference."""

import pytest

from gpushare.sim.inputs import shipped
from gpushare.sim.report import Record
from gpushare.sim.tables import (
    FILES,
    LOADS,
    PUBLISHED,
    cells,
    printed,
    published,
    side_by_side,
    worst,
)


def record(file: str, policy: str, seed: int, allocated: float) -> Record:
    curve = {str(load): allocated + load / 1000 for load in LOADS}
    return {"file": file, "policy": policy, "seed": seed, "allocated": curve}


RUNS = [
    record("multigpu50", "fgd", 42, 97.0),
    record("default", "shadow-price", 42, 96.0),
    record("default", "fgd", 42, 95.0),
    record("default", "shadow-price", 43, 96.2),
    record("default", "fgd", 43, 95.2),
]


def test_every_published_policy_has_a_mean_for_every_trace_and_load() -> None:
    known = published()
    assert set(known) == {(f, p, load) for f in FILES for p in PUBLISHED for load in LOADS}
    # As printed in the paper's expected results for its headline: FGD on the default trace.
    assert known["default", "fgd", 100] == pytest.approx(95.23, abs=0.005)
    assert set(FILES) == set(shipped())


def test_ours_stands_beside_what_was_published() -> None:
    found = {(cell.file, cell.policy, cell.load): cell for cell in cells(RUNS)}
    fgd = found["default", "fgd", 100]
    assert fgd.ours == pytest.approx(95.2)
    assert fgd.published == pytest.approx(95.227)
    assert fgd.difference == pytest.approx(-0.027)
    ours = found["default", "shadow-price", 100]
    assert (ours.published, ours.difference) == (None, None)
    assert ours.ours == pytest.approx(96.2)


def test_files_and_policies_come_in_the_paper_s_order() -> None:
    rows = side_by_side(cells(RUNS))
    assert [row[:2] for row in rows[1:]] == [
        ["default", "fgd"],
        ["default", "shadow-price"],
        ["multigpu50", "fgd"],
    ]
    assert rows[1][5:8] == ["95.23", "95.20", "-0.03"]
    assert rows[2][5:8] == ["-", "96.20", "-"]


def test_the_farthest_cell_is_named() -> None:
    farthest = worst(cells(RUNS))
    assert farthest is not None
    assert (farthest.file, farthest.load) == ("multigpu50", 95)
    assert worst([]) is None


def test_what_is_printed_ends_with_the_farthest_cell() -> None:
    lines = printed(RUNS).splitlines()
    assert lines[0].split()[:5] == ["FILE", "POLICY", "PUBLISHED@95", "OURS@95", "DIFF@95"]
    assert lines[-1].startswith("farthest from the published figures: +")
    assert lines[-1].endswith("(multigpu50, fgd at 95)")
    assert len(printed([]).splitlines()) == 1
