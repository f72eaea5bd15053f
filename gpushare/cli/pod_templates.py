"""Find the pods that an object makes, by where pod templates stand in the object.

An object of any kind is read: wherever a list `containers` is, there is the spec of a pod. Each
number of copies on the way to the spec (`replicas`, `parallelism`, `numOfHosts`) multiplies the
pods. Two kinds need more: a LeaderWorkerSet counts the leader among `size`, and an InferenceService
of KServe has the containers of a predictor under names such as `model`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from gpushare.cli.facts import Fields, elements, mapping, text
from gpushare.errors import SettingsError

_MOST_PODS = 10**6
_COMPONENTS = ("predictor", "transformer", "explainer")
"""The parts of an InferenceService that have pods."""
_WRAPPERS = frozenset({"spec", "template", "jobTemplate", "podSpec"})
"""Fields that give a part of an object no name of its own."""
_WITHOUT_PODS = frozenset({"metadata", "status"})


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Equal pods that an object makes. part: the part of the object that makes them, or ""."""

    part: str
    pod: Fields
    """Metadata and spec."""
    count: int


def pod_templates(item: Fields) -> list[PodTemplate]:
    """Return the pods that an object makes; [] for an object without pods.

    Of a CronJob one run counts, of a DaemonSet one pod. Raises SettingsError for a number of copies
    that is none.
    """
    if item.get("kind") == "Pod":
        return [PodTemplate("", item, 1)]
    if item.get("kind") == "InferenceService":
        components = mapping(item.get("spec"))
        return [
            _of_component(item, name, mapping(components[name]))
            for name in _COMPONENTS
            if name in components
        ]
    return [*_templates(item, "", [])]


def _of_component(item: Fields, name: str, component: Fields) -> PodTemplate:
    """Return the pods of a part of an InferenceService, which has the object's annotations."""
    named = [value for value in component.values() if "resources" in mapping(value)]
    metadata: dict[str, Any] = {}
    for key in ("annotations", "labels"):
        metadata[key] = {
            **mapping(mapping(item.get("metadata")).get(key)),
            **mapping(component.get(key)),
        }
    spec = {**component, "containers": [*elements(component.get("containers")), *named]}
    return PodTemplate(name, {"metadata": metadata, "spec": spec}, _copies([component]))


def _templates(fields: Fields, part: str, above: Sequence[Fields]) -> Iterator[PodTemplate]:
    """Yield the templates in some fields. above: the fields around these."""
    around, spec = [*above, fields], mapping(fields.get("spec"))
    if elements(fields.get("containers")):
        yield PodTemplate(part, {"spec": fields}, _copies(around))
        return
    if elements(spec.get("containers")):
        yield PodTemplate(part, fields, _copies([*around, spec]))
        return
    for key, value in fields.items():
        if key in _WITHOUT_PODS:
            continue
        name = part if key in _WRAPPERS else key
        if isinstance(value, dict):
            workers: list[Fields] = []
            if key == "workerTemplate" and "size" in fields:
                size, leaders = fields["size"], int("leaderTemplate" in fields)
                workers = [{"replicas": size - leaders if type(size) is int else size}]
            yield from _templates(value, name, [*around, *workers])
        for element in map(mapping, elements(value)):
            own_name = text(element.get("name")) or text(element.get("groupName"))
            yield from _templates(element, own_name or name, around)


def _copies(around: Sequence[Fields]) -> int:
    """Return the product of the numbers of copies in these fields."""
    numbers = [number for fields in around for number in _numbers(fields)]
    wrong = [number for number in numbers if type(number) is not int or number < 0]
    if not wrong and (count := prod(int(str(number)) for number in numbers)) < _MOST_PODS:
        return count
    raise SettingsError(f"{(wrong or numbers)[0]!r:.80} is no number of pods")


def _numbers(fields: Mapping[str, object]) -> Iterator[object]:
    if fields.get("replicas") is not None:
        yield fields["replicas"]
    elif fields.get("minReplicas") is not None:  # 0 are as many as there are without requests
        yield fields["minReplicas"] or 1
    number, completions = fields.get("parallelism"), fields.get("completions")
    if isinstance(number, int) and isinstance(completions, int):
        number = min(number, completions)
    if number is not None:
        yield number
    if fields.get("numOfHosts") is not None:
        yield fields["numOfHosts"]
