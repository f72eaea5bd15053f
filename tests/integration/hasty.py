"""`python -m tests.integration.hasty FATE serve FLAG...`: the real program, in a hurry.

It audits several times a second, and the settling thread counts as stuck after two seconds, as
does a request without an answer. FATE: the fate of settling, each time: "fails", "hangs" or "well";
or "prioritize hangs".
"""

import functools
import sys
import threading
from unittest import mock

from gpushare.cli.main import main
from gpushare.extender import process, settler
from gpushare.extender.door.worker import UnansweredRequests
from gpushare.extender.follow.auditor import Auditor
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.prioritize import PrioritizeVerb

STUCK = 2.0


def _settle(fate: str) -> int:
    if fate == "fails":
        raise RuntimeError("a failure on order")
    if fate == "hangs":
        _hang()
    return 0


def _hang(*_: object) -> None:
    threading.Event().wait()


if __name__ == "__main__":
    fate = sys.argv[1]
    hurried = functools.partial(Auditor, interval=0.2, pause=0.0)
    impatient = functools.partial(UnansweredRequests, max_looks=int(STUCK))
    mock.patch.multiple(process, Auditor=hurried, UnansweredRequests=impatient).start()
    mock.patch.object(settler, "STUCK", STUCK).start()
    mock.patch.object(Binder, "settle_overdue", functools.partial(_settle, fate)).start()
    if fate == "prioritize hangs":
        mock.patch.object(PrioritizeVerb, "answer", _hang).start()
    sys.exit(main(sys.argv[2:]))
