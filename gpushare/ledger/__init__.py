"""The books: who holds how much of each device.

Tested in `tests/unit/ledger/test_ledger.py`, `tests/unit/core/states/test_phases.py` and
`tests/unit/ledger/test_model.py`.
"""

from gpushare.core.states.records import BINDING_LIFETIME, Alarm
from gpushare.ledger.books import LANDED_GRACE, LedgerView, Overdue, Reader
from gpushare.ledger.ledger import Changes, LearnedPod, Ledger

__all__ = [
    "BINDING_LIFETIME",
    "LANDED_GRACE",
    "Alarm",
    "Changes",
    "LearnedPod",
    "Ledger",
    "LedgerView",
    "Overdue",
    "Reader",
]
