"""All sentences of the verdict on a pod that waits, by verdict: explain, whatif, events and the
page have no others, of pods by annotation and by claims.

`gpushare.explain.text.verdict_text` makes them.
"""

import re

from gpushare.core.explain import PodVerdict

_AMOUNT = r"\d+ (?:GiB|MiB|units|x \S+)"
_PLACES = rf"{_AMOUNT} on (?:one device|each of \d+ devices)"
_SIZE = rf"(?:{_AMOUNT}|\d+ % of the memory(?:, at least {_AMOUNT})?)"
_PARTS = rf"(?:\d+ \+ )+{_AMOUNT}"
_NAMES = r"\S+(?:(?:,| and) (?:\S+|\d+ more))*"
_POD = r"(?:\S+|a pod of another namespace)"
_HELD = rf"{_POD} \({_SIZE}(?: with [^()]+)?(?:, being deleted[^()]*)?\)"
_COULD = "|".join(
    (
        rf"with at most {_PARTS} on \d+ devices",
        rf"with at most {_PLACES}",
        rf"on at most (?:one device|\d+ devices) of (?:{_SIZE}|{_PARTS})",
        rf"with {_PLACES}: a gpu-count of \d+, as an annotation of the pod(?: in place of its"
        r" split)?",
    )
)
_ENDS = rf"{_HELD}(?:(?:,| and) (?:{_HELD}|\d+ more))* ends?"
_SERVES = rf"{_POD}(?:(?:,| and) (?:{_POD}|\d+ more))* (?:has|have) been given the device by the"
CURES = (
    "it is uncordoned",
    "it is ready",
    r"its taint (\S+) is gone or the pod tolerates it",
    r"its device plug-in offers (\S+) again",
    r"it offers more (\S+)",
    r"more of its (\S+) is free",
)
"""How obstacles of kube-scheduler's own filters end."""
_NEEDS = "|".join(
    (
        rf"{_SERVES} device plug-in",
        r"closed devices? \d+(?:, \d+)* returns?",
        _ENDS,
        *(cure.replace("(", "(?:") for cure in CURES),
    )
)
_CLAIM = rf"claim \S+(?: \(of {_NAMES}\))?"
_CLAIMS_END = rf"{_CLAIM}(?:(?:,| and) (?:{_CLAIM}|\d+ more))* ends?"
_LACKS = r" \(but the node would still have too little \S+(?: and \S+)*\)"
_REMEDY = rf"on \S+ once (?:{_NEEDS})(?: and (?:{_NEEDS}))*(?:{_LACKS})?"

SENTENCES: dict[PodVerdict, tuple[str, ...]] = {
    PodVerdict.FITS_NOW: (rf"on {_NAMES}",),
    PodVerdict.WOULD_FIT: (
        rf"{_REMEDY}(?:; or {_REMEDY})*",
        rf"on \S+ once {_CLAIMS_END}",
    ),
    PodVerdict.MAY_FIT: ("soon: the books have just changed, or places are held for other pods",),
    PodVerdict.NEVER_FITS: (
        rf"even on an empty node it could only fit (?:{_COULD})(?: or (?:{_COULD}))*",
        r"no device is one .+; there are models .+",
        "kube-scheduler itself leaves out every node with a device that would do",
        "no node that the pod may use shares a device",
        "no node has devices for its claims, even if all other claims end",
    ),
}


def verdicts_of(text: str) -> list[PodVerdict]:
    """The verdicts that have such a sentence."""
    return [
        verdict
        for verdict, patterns in SENTENCES.items()
        if any(re.fullmatch(pattern, text) for pattern in patterns)
    ]
