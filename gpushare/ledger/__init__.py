"""The books: who holds how much of which device."""

from gpushare.ledger.ledger import Changes, Ledger
from gpushare.ledger.reader import LANDED_GRACE, Overdue, Reader
from gpushare.ledger.records import HOLD, Alarm

__all__ = ["HOLD", "LANDED_GRACE", "Alarm", "Changes", "Ledger", "Overdue", "Reader"]
