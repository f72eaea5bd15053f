"""Away from loopback: a real kube-scheduler and our extender show each other certificates."""

import http.client
import json
from pathlib import Path

import pytest

from tests.e2e.conftest import MakeWorld
from tests.integration.certificates import call, make_pki, shown
from tests.integration.process import free_port
from tests.integration.verbs import bind_args

_PRINTED = "/etc/kubernetes/pki/gpushare"
"""Where the printed file has kube-scheduler look for certificates."""


def test_pods_are_placed_over_mutual_tls_and_nobody_else_may_call(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    make_pki(tmp_path)
    port = free_port()
    world = make_world(
        options=("--url", f"https://127.0.0.1:{port}/gpushare-scheduler"),
        change={_PRINTED: str(tmp_path)},
        flags=(
            *("--leadership", "off", "--listen", f"0.0.0.0:{port}"),
            *(
                "--tls-cert",
                str(tmp_path / "server.crt"),
                "--tls-key",
                str(tmp_path / "server.key"),
            ),
            *("--tls-client-ca", str(tmp_path / "scheduler-ca.crt")),
            *("--tls-client-names", "kube-scheduler"),
        ),
        tls=shown(tmp_path, "client"),
    )
    objects = world.objects
    world.start()
    node = objects.node(devices=2, units=16)
    assert objects.lands(objects.pod(10), world.told) == (node, {0: 10})
    assert objects.lands(objects.pod(9), world.told) == (node, {1: 9})
    objects.refusal(objects.pod(8), "1 Insufficient GPU Memory in one device")

    unbound = objects.pod(1, schedulerName="nobody")
    body = json.dumps(bind_args(unbound, node)).encode()
    for name in ("", "forged"):
        with pytest.raises((OSError, http.client.HTTPException)):
            call(world.extender.url, shown(tmp_path, name), body)
    assert call(world.extender.url, shown(tmp_path, "other"), body) == 403
    assert not objects.node_of(unbound)
    world.agrees()
