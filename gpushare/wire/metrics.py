"""The extender's metrics as commands read them: Prometheus' text, and which policy ranks pods.

Pure; standard library only, since the kubectl plug-in imports this module.

Tested in `tests/unit/wire/test_metrics.py`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

from gpushare.core.trial_lead import lead_text
from gpushare.errors import SettingsError

Samples = Mapping[str, float]
"""Value by sample, as in `gpushare_pods{resource="r",state="bound"}`."""

_LABEL = re.compile(r'[a-z_]+="[^"]*"')
_LONGEST = 320
"""Characters of a label: as many as the name of a resource may have."""


def check_health_url(url: str) -> None:
    """Raise SettingsError if the url is not the address of a health listener."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise SettingsError(f"--extender: {url[:200]!r} is not http://HOST:PORT")


def read_samples(metrics: str) -> dict[str, float]:
    """Return Prometheus' text as sample -> value; other lines are left out."""
    samples = {}
    for line in metrics.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample and not line.startswith("#"):
            try:
                samples[sample] = float(value)
            except ValueError:
                continue
    return samples


def family(samples: Samples, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the value of each sample of a family that has these labels."""
    for sample, value in samples.items():
        if sample.partition("{")[0] == name:
            pairs = (text.partition("=") for text in _LABEL.findall(sample))
            sample_labels = {key: quoted.strip('"')[:_LONGEST] for key, _, quoted in pairs}
            if labels.items() <= sample_labels.items():
                yield sample_labels, value


def total(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the sum of a family's samples that have these labels; None if there is none."""
    values = [value for _, value in family(samples, name, **labels)]
    return sum(values) if values else None


@dataclass(frozen=True, slots=True)
class RankingPolicy:
    """The policy of pods that name none."""

    name: str
    since: str = ""
    """The time of the trial that chose the policy, by RFC 3339; "" without a trial."""
    second: str = ""
    """The best of the other candidates in the last trial, "" if unknown."""
    lead: float = 0.0
    """Percentage points of memory that the policy allocated above `second` in that trial."""
    error: float = 0.0
    """The standard error of `lead`."""
    allocated_percent: Mapping[str, float] = field(default_factory=dict)
    """Allocated memory by candidate, in percent of the memory."""
    refused_percent: Mapping[str, float] = field(default_factory=dict)
    """Refused memory by candidate, in percent of the memory."""
    shadow: str = ""
    """A clause on the policy that is followed beside; "" if there is none."""

    def __str__(self) -> str:
        """Return the name, and after a trial also the time and the lead."""
        if not self.since:
            return self.name
        text = f"{self.name}, chosen by auto, since {self.since}"
        if not self.second:
            return text
        return f"{text}; in the last trial {lead_text(self.lead, self.error, self.second)}"


def ranking_policies(samples: Samples) -> dict[str, RankingPolicy]:
    """Return by managed resource the policy that ranks."""
    policies = {}
    for labels, _ in family(samples, "gpushare_ranking_policy"):
        resource, name = labels.get("resource", ""), labels.get("policy", "")
        chosen = "gpushare_ranking_policy_chosen_timestamp_seconds"
        at, since = _by_policy(samples, chosen, resource).get(name, 0.0), ""
        with suppress(ValueError, OverflowError, OSError):
            since = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if at else ""
        leads = family(samples, "gpushare_trial_lead_percent", resource=resource)
        lead_labels, lead = next(leads, ({}, 0.0))
        errors = _by_policy(samples, "gpushare_trial_lead_error_percent", resource)
        policies[resource] = RankingPolicy(
            name=name,
            since=since,
            second=lead_labels.get("second", ""),
            lead=lead,
            error=errors.get(name, 0.0),
            allocated_percent=_by_policy(samples, "gpushare_trial_allocated_percent", resource),
            refused_percent=_by_policy(samples, "gpushare_trial_refused_percent", resource),
            shadow=_shadow(samples, resource),
        )
    return policies


def _by_policy(samples: Samples, name: str, resource: str) -> dict[str, float]:
    family_samples = family(samples, name, resource=resource)
    return {labels.get("policy", ""): value for labels, value in family_samples}


def _shadow(samples: Samples, resource: str) -> str:
    """Return the differences of the shadow policy's choices, or ""."""
    state = next(family(samples, "gpushare_shadow_on"), None)
    if state is None:
        return ""

    def count(counter: str, **labels: str) -> int:
        return int(
            total(samples, f"gpushare_shadow_{counter}_total", resource=resource, **labels) or 0
        )

    choices, same_choices = count("choices"), count("choices", choice="same")
    text = (
        f"{state[0].get('policy', '')}, another choice for {choices - same_choices} of {choices}"
        f" requests; of the pods that run it refused {count('pods', taken='real')}, of those"
        f" refused it had room for {count('pods', taken='shadow')}"
    )
    return text if state[1] else f"{text}; it failed and is off"
