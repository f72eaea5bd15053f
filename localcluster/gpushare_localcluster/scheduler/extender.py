"""The HTTP extender as kube-scheduler calls it: bytes on the wire, interest, errors.

Knows the extender/v1 JSON and kube-scheduler's rules: a status other than 200 is an error without a
body, an unknown node in an answer is an error, and keys match in any case. Knows nothing of
devices.
"""

import http.client
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.wire.scheduler.config import ExtenderConfig
from gpushare_localcluster.client import HttpClient
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status
from gpushare_localcluster.scheduler.objects import Json, PodView

log = logging.getLogger(__name__)

# The plug-in name in the queue for a rejection by an extender (kube-scheduler >= 1.29).
PLUGIN_NAME = "Extender"
# Extenders score 0..10, plugins 0..100.
_SCORE_SCALE = 10
_HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": "Go-http-client/1.1",
    "Accept-Encoding": "gzip",
}


class ExtenderError(Exception):
    """A failed call to an extender; the text goes into the pod's event."""


@dataclass(frozen=True)
class Candidate:
    """A node, the victims (the most important first), and the number of protected victims."""

    node: str
    pods: tuple[PodView, ...] = ()
    violations: int = 0


@dataclass(frozen=True)
class FilterResult:
    """The nodes that passed, and the status of each other node."""

    nodes: tuple[NodeInfo, ...]
    statuses: Mapping[str, Status]


class HttpExtender:
    """One configured extender, called by plain http."""

    def __init__(self, config: ExtenderConfig) -> None:
        self.config = config
        self._url = config.url_prefix.rstrip("/")
        self._managed = frozenset(item.name for item in config.managed_resources)
        self._http = HttpClient(self._url, headers=_HEADERS)

    @property
    def name(self) -> str:
        """The URL, which kube-scheduler takes as the name."""
        return self.config.url_prefix

    def is_interested(self, pod: PodView) -> bool:
        """Return whether the pod names a managed resource; without a list all pods do."""
        return not self._managed or bool(self._managed & pod.resource_names)

    def filter(self, pod: PodView, nodes: Sequence[NodeInfo]) -> FilterResult:
        """Return the nodes that pass. Raises ExtenderError."""
        answer = self._answer(self.config.filter_verb, self._args(pod, nodes))
        if error := answer.get("error"):
            raise ExtenderError(str(error))
        nodes_by_name = {node.name: node for node in nodes}
        remaining = [nodes_by_name[name] for name in self._surviving(answer, nodes_by_name)]
        return FilterResult(
            tuple(remaining), _objections(answer, nodes_by_name, {node.name for node in remaining})
        )

    def prioritize(self, pod: PodView, nodes: Sequence[NodeInfo]) -> dict[str, int]:
        """Return the extender's part of each node's score, with weight and scale.

        Raises ExtenderError.
        """
        url = f"{self._url}/{self.config.prioritize_verb}"
        priorities = _decode(self._send(self.config.prioritize_verb, self._args(pod, nodes)), url)
        scores: dict[str, int] = {}
        for item in priorities if isinstance(priorities, list) else []:
            entry = {key.lower(): value for key, value in item.items()}
            score = entry.get("score", 0)
            if type(score) is not int:
                raise ExtenderError(f"{url}: a score is no integer: {score!r}")
            host = str(entry.get("host", ""))
            scores[host] = scores.get(host, 0) + score * self.config.weight * _SCORE_SCALE
        return scores

    def bind(self, pod: PodView, node_name: str) -> Status:
        """Call the extender to bind the pod; return Success or the error."""
        args = {
            "PodName": pod.name,
            "PodNamespace": pod.namespace,
            "PodUID": pod.uid,
            "Node": node_name,
        }
        try:
            answer = self._answer(self.config.bind_verb, args)
        except ExtenderError as error:
            return Status(Code.ERROR, (str(error),))
        error_text = answer.get("error")
        return Status(Code.ERROR, (str(error_text),)) if error_text else SUCCESS

    def preempt(
        self, pod: PodView, candidates: Sequence[Candidate], snapshot: Snapshot
    ) -> list[Candidate]:
        """Return the remaining candidates with the extender's victims. Raises ExtenderError."""
        capable = self.config.node_cache_capable

        def named(victim: PodView) -> Json:
            return {"UID": victim.uid} if capable else _body(victim)

        victims_by_node: Json = {
            candidate.node: {
                "Pods": [named(victim) for victim in candidate.pods],
                "NumPDBViolations": candidate.violations,
            }
            for candidate in candidates
        }
        args = {
            "Pod": _body(pod),
            "NodeNameToVictims": None if capable else victims_by_node,
            "NodeNameToMetaVictims": victims_by_node if capable else None,
        }
        answer = self._answer(self.config.preempt_verb, args)
        nodes = answer.get("nodenametometavictims") or {}
        return [self._candidate(name, victims, snapshot) for name, victims in nodes.items()]

    def close(self) -> None:
        """Close the idle connections."""
        self._http.close()

    def _args(self, pod: PodView, nodes: Sequence[NodeInfo]) -> Json:
        """Return ExtenderArgs with node names if nodeCacheCapable is set, else with nodes."""
        body = _body(pod)
        if self.config.node_cache_capable:
            return {"Pod": body, "Nodes": None, "NodeNames": [node.name for node in nodes]}
        items = [
            {key: node.node.raw[key] for key in ("metadata", "spec", "status")} for node in nodes
        ]
        return {"Pod": body, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}

    def _candidate(self, name: str, victims: Json | None, snapshot: Snapshot) -> Candidate:
        node = snapshot.get(name)
        if node is None:
            raise ExtenderError(f'nodeinfo not found for node name "{name}"')
        if victims is None or None in (victims.get("Pods") or ()):
            raise ExtenderError(f"{self._url}: null for victims on {name}: kube-scheduler panics")
        pods: list[PodView] = []
        for item in victims.get("Pods") or ():
            uid = str(item.get("UID", ""))
            if uid not in node.pods:
                raise ExtenderError(
                    f"extender: {self.name} claims to preempt pod (UID: {uid}) on node: {name},"
                    " but the pod is not found on that node"
                )
            pods.append(node.pods[uid])
        return Candidate(name, tuple(pods), int(victims.get("NumPDBViolations") or 0))

    def _answer(self, verb: str, args: Json) -> Json:
        """Return the JSON object in the answer, with lower-case keys, as Go ignores case."""
        url = f"{self._url}/{verb}"
        value = _decode(self._send(verb, args), url)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ExtenderError(f"{url}: the answer is no JSON object")
        return {key.lower(): item for key, item in value.items()}

    def _send(self, verb: str, args: Json) -> bytes:
        url = f"{self._url}/{verb}"
        try:
            answer = self._http.call(
                "POST", f"/{verb}", go_json(args), timeout=self.config.http_timeout
            )
        except (OSError, http.client.HTTPException) as error:
            raise ExtenderError(f'Post "{url}": {str(error) or type(error).__name__}') from error
        if answer.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
        return answer.body

    def _surviving(self, answer: Json, nodes_by_name: Mapping[str, NodeInfo]) -> list[str]:
        """Return the names in the answer: NodeNames if nodeCacheCapable is set, else Nodes."""
        names = answer.get("nodenames")
        if self.config.node_cache_capable and names is not None:
            for name in names:
                if name not in nodes_by_name:
                    raise ExtenderError(
                        f'extender "{self.name}" claims a filtered node "{name}"'
                        " which is not found in the input node list"
                    )
            return list(dict.fromkeys(names))
        nodes = answer.get("nodes")
        if nodes is None:
            return []
        node_names = [str(item["metadata"]["name"]) for item in nodes.get("items") or ()]
        return [name for name in dict.fromkeys(node_names) if name in nodes_by_name]


def go_json(value: object) -> bytes:
    """Return JSON as Go's encoding/json writes it: no spaces, UTF-8, HTML characters escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _body(pod: PodView) -> Json:
    """Return the pod as kube-scheduler sends it, without kind and apiVersion."""
    return {key: pod.raw[key] for key in ("metadata", "spec", "status") if key in pod.raw}


def _decode(body: bytes, url: str) -> object:
    """Return the first JSON value of a body; as in Go, the remaining bytes are ignored."""
    try:
        text = body.decode().lstrip()
        value: object = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, UnicodeDecodeError) as error:
        raise ExtenderError("EOF" if not body.strip() else f"{url}: {error}") from error
    return value


def _objections(
    answer: Json, nodes_by_name: Mapping[str, NodeInfo], surviving: set[str]
) -> dict[str, Status]:
    """Return a status for every dropped node; without a reason it is unresolvable (>= 1.30)."""
    failed: Mapping[str, str] = answer.get("failednodes") or {}
    hopeless: Mapping[str, str] = answer.get("failedandunresolvablenodes") or {}
    statuses: dict[str, Status] = {}
    for name in nodes_by_name.keys() - surviving:
        reason = hopeless.get(name, failed.get(name))
        helps = name in failed and name not in hopeless
        code = Code.UNSCHEDULABLE if helps else Code.UNRESOLVABLE
        statuses[name] = Status(code, () if reason is None else (str(reason),), PLUGIN_NAME)
    return statuses
