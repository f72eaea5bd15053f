"""The table of kubectl commands in docs/local-cluster.md is true."""

import shutil
from pathlib import Path

import pytest

from tests.contract.apiserver.conftest import SERVER
from tests.contract.workloads.clusters import Running, shared
from tests.contract.workloads.commands import NAMESPACE, outcomes, told
from tests.e2e import versions
from tests.e2e.binaries import NEWEST, RELEASE

pytestmark = pytest.mark.kubectl


@pytest.mark.timeout(600)
def test_what_comes_of_each_command_is_as_the_table_says(running: Running, tmp_path: Path) -> None:
    kubectl = versions.version_of(Path(shutil.which("kubectl") or ""), "version", "--client")
    if kubectl != NEWEST or (SERVER != "localcluster" and RELEASE != NEWEST):
        pytest.skip(f"the table is of {NEWEST}; others use other words (kubectl is {kubectl})")
    result = outcomes(shared(running, NAMESPACE), tmp_path)
    assert {f"kubectl {item.command}": item.told for item in result} == told(SERVER)
