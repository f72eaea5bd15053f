"""The user's file for the demo's scheduler: read as by kube-scheduler, with the demo's extender.

Tested in `tests/integration/test_demo.py`, which runs the demo with such files.
"""

from collections.abc import Mapping
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.yamlfile import read_as_kubernetes
from gpushare_localcluster.demo.manifests import scheduler_config
from gpushare_localcluster.demo.plan import ScenarioError
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.profiles import build_frameworks, options_from

Json = dict[str, object]

_OURS = (ALIYUN.resource, ALIYUN.count)
_REPLACED = ("enableHTTPS", "enableHttps", "tlsConfig")
"""Fields beside urlPrefix: the demo's extender speaks plain HTTP."""


def read_file(file: Path | None) -> Json:
    """Return the document in a file, {} for None. Raises ScenarioError."""
    if file is None:
        return {}
    try:
        document = read_as_kubernetes(str(file))
        if not isinstance(document, dict):
            raise SettingsError("not an object")
        whole, _ = with_extender(document, 1)
        build_frameworks(options_from(decode_scheduler_config(whole)).profiles, Handle())
    except SettingsError as error:
        prefix = "" if str(error).startswith(str(file)) else f"{file}: "
        raise ScenarioError(f"{prefix}{error}") from error
    return document


def with_extender(document: Mapping[str, object], port: int) -> tuple[Json, list[str]]:
    """Return the document with the demo's extender, and lines about the change.

    An entry for our resource, and one with the same URL, gets the URL of the demo's extender; other
    entries stay. port: where the extender listens on loopback. Raises SettingsError.
    """
    plain = scheduler_config(port)
    (demo_entry,) = _entries(plain)
    entries, remarks = [], []
    urls = {entry.get("urlPrefix") for entry in _entries(document) if _is_ours(entry)}
    for number, entry in enumerate(_entries(document)):
        if entry.get("urlPrefix") in urls:
            fields = {key: value for key, value in entry.items() if key not in _REPLACED}
            entries.append({**fields, "urlPrefix": demo_entry["urlPrefix"]})
            remarks.append(
                f"extenders[{number}] of the file is the demo's extender, with weight"
                f" {entry.get('weight', 'none')}, called at {demo_entry['urlPrefix']}"
            )
        else:
            entries.append(entry)
            remarks.append(f"extenders[{number}] of the file is called as it says")
    if not any(map(_is_ours, entries)):
        entries.append(demo_entry)
        if document:
            added = f"weight {demo_entry['weight']}: above all other scores together"
            remarks.append(f"the demo's extender is added to the file, with {added}")
    if document.get("kind") == "Policy":
        return {**document, "extenders": entries}, remarks
    return {**plain, **document, "extenders": entries}, remarks


def _entries(document: Mapping[str, object]) -> list[Json]:
    """Return the entries of extenders. Raises SettingsError."""
    entries = document.get("extenders") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SettingsError("extenders: not a list of objects")
    return entries


def _is_ours(entry: Json) -> bool:
    resources = entry.get("managedResources")
    return isinstance(resources, list) and any(
        isinstance(resource, dict) and resource.get("name") in _OURS for resource in resources
    )
