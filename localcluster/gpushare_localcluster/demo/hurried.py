"""`python -m gpushare_localcluster.demo.hurried serve FLAG...`: gpushare, in a hurry.

The extender that the demo starts beside an autoscaler. It is the real one; only its looks at what
autoscalers do come every half second, and it waits for nothing longer than a demo does. Tested in
`tests/integration/test_demo.py`, which runs it as the demo does.
"""

import runpy

from gpushare.extender.follow import placeholders, scale_down_guard

_SOON = 0.5

if __name__ == "__main__":
    scale_down_guard.EVERY = scale_down_guard.AGAIN = _SOON
    placeholders.EVERY = placeholders.AGAIN = _SOON
    placeholders.WAITING = placeholders.AFTER_JOIN = _SOON
    runpy.run_module("gpushare.cli.main", run_name="__main__", alter_sys=True)
