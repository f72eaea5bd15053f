"""Prometheus' own promtool reads the alerts and the dashboard, and fires each alert.

That the metrics exist is shown in tests/integration/test_alerts.py. No control plane is needed.
"""

import functools
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gpushare.core.model import Request
from gpushare.extender.tell.metrics import Metrics
from tests.e2e.binaries import tool
from tests.e2e.chart import CHART, ROOT
from tests.integration.test_alerts import expressions, rules
from tests.unit.extender.tell.test_memory_metrics import holding

RULES = CHART / "monitoring" / "rules.yaml"
STORIES = Path(__file__).parent / "tools" / "promtool" / "alerts.yaml"
ALERTS = [rule["alert"] for rule in rules() if "alert" in rule]


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """The output of promtool, which must succeed."""
    command = [tool("promtool"), *arguments]
    finished = subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)
    output = (finished.stdout + finished.stderr).decode()
    assert finished.returncode == 0, output
    return output


def test_the_rules_are_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)


def test_each_alert_fires_in_its_story_and_none_where_all_is_well() -> None:
    promtool("test", "rules", STORIES)
    # promtool checks the expectations in the file, which must include each alert.
    expected = re.findall(r"""alertname(?:="|: )(\w+)""", STORIES.read_text())
    assert sorted(expected) == sorted(ALERTS)


def test_a_story_without_its_alert_is_found(tmp_path: Path) -> None:
    quiet = RULES.read_text().replace(
        "gpushare_device_plugin_wrong_containers > 0", "vector(0) > 0"
    )
    (tmp_path / "rules.yaml").write_text(quiet)
    text = re.sub(r"(?m)^rule_files:.*$", "rule_files: [rules.yaml]", STORIES.read_text())
    (tmp_path / "alerts.yaml").write_text(text)
    with pytest.raises(AssertionError, match="GpushareWrongDevice"):
        promtool("test", "rules", tmp_path / "alerts.yaml")


def test_the_dashboards_expressions_can_be_read(tmp_path: Path) -> None:
    panels = [item for item in expressions().values() if not item.startswith("label_values")]
    variables = {"$__rate_interval": "5m", "$__range": "1d", "$resource": ".*"}
    texts = [
        functools.reduce(lambda text, pair: text.replace(*pair), variables.items(), item)
        for item in panels
    ]
    records = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(texts)]
    (tmp_path / "panels.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]})
    )
    assert f"{len(texts)} rules found" in promtool("check", "rules", tmp_path / "panels.yaml")


def test_promtool_finds_nothing_to_say_of_the_metrics() -> None:
    metrics = Metrics(
        holding(("team", "pod", Request(1, 1), ((0, 1),))), 2**30, dict, detail="pods"
    )
    metrics.observe("filter", "fit", 0.1)
    assert promtool("check", "metrics", stdin=metrics.text()) == ""


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_runbook(alert: str) -> None:
    (rule,) = (item for item in rules() if item.get("alert") == alert)
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {alert}\n")[2].partition("\n## ")[0]
    severity = rule["labels"]["severity"].capitalize()
    duration = f", after {rule['for']}" if "for" in rule else ""
    assert section.split("\n\n")[0].strip() == f"{severity}{duration}."
    assert len(section.split()) > 25, "it says what to do"
