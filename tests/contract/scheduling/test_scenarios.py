"""Bindings, pending pods and reasons: the same on our cluster and on a real one.

The scenario files have the promises, those of the demo included.
"""

from pathlib import Path

import pytest

from gpushare_localcluster.demo.scenario import load_scenario, shipped
from tests.contract.apiserver.conftest import SERVER
from tests.contract.scheduling.clusters import Cluster

_OWN = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
# In these the extender names victims where kube-scheduler has none, which is expected of 1.38.
_NOT_YET = ("9-preempt-right-device", "11-preempt-budget")
# The extender and the second scheduler of these scenarios are shown by tests/e2e/test_claims.py.
_CLAIMS = ("14-dra",)
# On our own cluster the demo's tests run these scenarios.
_SHIPPED = [
    file
    for file in shipped()
    if file.suffix == ".yaml"
    and file.stem not in (*_NOT_YET, *_CLAIMS)
    and SERVER != "localcluster"
]


@pytest.mark.parametrize("file", [*_OWN, *_SHIPPED], ids=lambda file: str(file.stem))
def test_a_scenario_comes_out_as_it_says(cluster: Cluster, file: Path) -> None:
    values = cluster.runner.run(load_scenario(file))
    shown_text = cluster.shown
    assert values, shown_text
