"""The CapacityBuffer of docs/autoscalers.md, by its own definition on a real kube-apiserver."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.apiserver.client import Api
from tests.e2e.conftest import MakePlane
from tests.e2e.objects import MEM, fresh
from tests.e2e.processes import until

ROOT = Path(__file__).parents[2]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
BUFFERS = "/apis/autoscaling.x-k8s.io/v1beta1/namespaces/default/capacitybuffers"
_BLOCK = re.compile(r"<!-- a buffer -->\n```yaml\n(.*?)```", re.DOTALL)
Json = dict[str, Any]


def documents() -> tuple[Json, Json]:
    """The PodTemplate and the CapacityBuffer of the page, under new names."""
    page = (ROOT / "docs" / "autoscalers.md").read_text(encoding="utf-8")
    (text,) = _BLOCK.findall(page)
    template, buffer = yaml.safe_load_all(text)
    name = fresh("warm")
    template["metadata"]["name"] = buffer["metadata"]["name"] = name
    assert buffer["spec"]["podTemplateRef"]["name"] == "warm-node"
    buffer["spec"]["podTemplateRef"]["name"] = name
    return template, buffer


@pytest.fixture(scope="module")
def api(make_plane: MakePlane) -> Api:
    """A control plane that has the kind."""
    result = make_plane().api()
    definition = ROOT / "tests" / "data" / "capacitybuffers.yaml"
    body = yaml.safe_load(definition.read_text(encoding="utf-8"))
    assert result.call("POST", DEFINITIONS, body).status == 201
    until(lambda: result.call("GET", BUFFERS).status == 200, lambda: "the kind is served")
    return result


def test_the_page_says_what_the_api_server_takes(api: Api) -> None:
    template, buffer = documents()
    # Strict: a field that the kinds do not know is refused.
    created = api.call("POST", TEMPLATES, template, fieldValidation="Strict")
    assert created.status == 201, created.body
    (container,) = created.body["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {MEM: "32"}, "requests": {MEM: "32"}}
    created = api.call("POST", BUFFERS, buffer, fieldValidation="Strict")
    assert created.status == 201, created.body
    assert created.body["spec"]["provisioningStrategy"] == "buffer.x-k8s.io/active-capacity"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"replicas": None}, "replicas or limits must also be set"),
        ({"scalableRef": {"kind": "Deployment", "name": "x"}}, "but not both"),
        ({"replicas": -1}, "should be greater than or equal to 0"),
        ({"podTemplate": {"name": "x"}}, 'unknown field "spec.podTemplate"'),
    ],
)
def test_a_buffer_that_is_written_wrongly_is_refused(api: Api, change: Json, says: str) -> None:
    buffer = copy.deepcopy(documents()[1])
    buffer["spec"] |= change
    buffer["spec"] = {key: value for key, value in buffer["spec"].items() if value is not None}
    refused = api.call("POST", BUFFERS, buffer, fieldValidation="Strict")
    assert refused.status in (400, 422)
    assert says in refused.body["message"]
