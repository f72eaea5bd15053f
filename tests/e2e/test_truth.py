"""All surfaces say of a cluster in an odd state what a real kube-scheduler does.

tests/support/odd_clusters.py has the clusters, the pods and what is compared.
"""

from pathlib import Path
from random import Random

import pytest

from tests.e2e.binaries import needed
from tests.e2e.conftest import MakeWorld
from tests.integration.process import free_port
from tests.support.odd_clusters import Sayings, check


@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_is_what_kube_scheduler_does(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("KUBECTL", str(needed("kubectl")))
    page = f"127.0.0.1:{free_port()}"
    world = make_world(flags=("--leadership", "off", "--ui-listen", page))
    world.start()
    kubeconfig = str(world.plane.kubeconfig("admin"))
    health = world.extender.health_url
    sayings = Sayings(
        world.objects, kubeconfig, page=f"http://{page}", health=health, folder=tmp_path
    )
    check(world.objects, sayings, Random(seed), nodes=5, pods=8)
    world.agrees()
