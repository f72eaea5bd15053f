"""The books: who holds how much of which device."""

from gpushare.ledger.ledger import HOLD, LANDED_GRACE, Alarm, Ledger, Overdue, Waiting

__all__ = ["HOLD", "LANDED_GRACE", "Alarm", "Ledger", "Overdue", "Waiting"]
