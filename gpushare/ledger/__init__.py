"""The books: who holds how much of which device.

Tested in `tests/unit/ledger/test_ledger.py`, `tests/unit/ledger/test_phases.py` and
`tests/unit/ledger/test_model.py`.
"""

from gpushare.ledger.ledger import Changes, LearnedPod, Ledger
from gpushare.ledger.reader import LANDED_GRACE, LedgerView, Overdue, Reader
from gpushare.ledger.records import HOLD, Alarm

__all__ = [
    "HOLD",
    "LANDED_GRACE",
    "Alarm",
    "Changes",
    "LearnedPod",
    "Ledger",
    "LedgerView",
    "Overdue",
    "Reader",
]
