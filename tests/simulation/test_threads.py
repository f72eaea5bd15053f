"""Many real threads on one node and on many: no device is promised twice, and all comes right."""

import pytest

from gpushare.ledger import Ledger
from gpushare.ledger.books import Store
from tests.simulation.threads import ThreadCrowd, switching_often


@pytest.mark.parametrize("nodes", [1, 16])
def test_books_hold_while_threads_bind_delete_list_and_settle(nodes: int) -> None:
    crowd = ThreadCrowd(nodes, threads=16, faults=0.1)
    with switching_often():
        crowd.run(seconds=2.0)
    assert crowd.answers["bound"] > 20
    assert crowd.truth.wrong == []


def test_a_charge_that_is_not_looked_at_again_under_the_lock_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assume = Ledger.assume
    monkeypatch.setattr(Store, "check_fits", lambda *_: None)
    monkeypatch.setattr(
        Ledger, "assume", lambda *args, **named: assume(*args, **named | {"seen": None})
    )
    with switching_often(), pytest.raises(AssertionError, match="holds"):
        _run_again_and_again()


def _run_again_and_again() -> None:
    for _ in range(10):
        ThreadCrowd(1, threads=16, faults=0.1).run(seconds=1.0)
