"""A pytest plugin that counts tests and their time by folder (`-p tests.support.parts`).

The times are sums over tests: with several processes the whole run takes less.
"""

from collections import Counter, defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = "/".join(report.nodeid.split("/")[1:2]).partition("::")[0]
                seconds[part] += report.duration
                calls[part] += report.when == "call"
    if not seconds:
        return
    terminalreporter.section("parts")
    for part, spent in sorted(seconds.items()):
        terminalreporter.line(f"{part:<14}{calls[part]:>6} tests{spent:>8.1f} s")
