"""Writes through kubectl, and the kinds of kubectl's errors."""

import json

import pytest

from gpushare.cli.kubectl import Kubectl
from gpushare.errors import ApiConflict, ApiError, GpuShareError
from tests.unit.cli.fake_kubectl import FakeKubectl


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("Error from server (TooManyRequests): no", ApiError, 429),
        ("Error from server (Conflict): no", ApiConflict, 409),
        ("Error from server (AlreadyExists): no", ApiConflict, 409),
        ("Error from server (InternalError): no", ApiError, 0),
        ("error: context deadline exceeded", ApiError, 0),
    ],
)
@pytest.mark.parametrize("verb", ["create", "replace"])
def test_kubectl_sends_a_file_and_its_errors_are_told_apart(
    kubectl: FakeKubectl, text: str, kind: type[GpuShareError], status: int, verb: str
) -> None:
    under_test = Kubectl(str(kubectl.path), ("--request-timeout=5s",), "", kubectl.environ)
    kubectl.otherwise('cat "$5" > "$(dirname "$0")/posted"')
    send = getattr(under_test, verb)
    send("/api/v1/x/eviction", {"kind": "Eviction"})
    assert json.loads((kubectl.folder / "posted").read_text()) == {"kind": "Eviction"}
    words = kubectl.log[-1].split()
    assert words[1:4] == [verb, "--raw", "/api/v1/x/eviction"]
    assert words[-2:] == ["--request-timeout=30s", "--request-timeout=5s"]
    kubectl.otherwise(f"echo '{text}' >&2; exit 1")
    with pytest.raises(kind) as raised:
        send("/api/v1/x/eviction", {})
    assert isinstance(raised.value, ApiError)
    assert raised.value.status == status
