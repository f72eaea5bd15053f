"""Merge patches of JSON documents (RFC 7386).

Pure: a patched document is a new value that shares unchanged parts; no argument is modified. Knows
nothing of Kubernetes kinds (`strategic.py` does).
"""


def merge_patch(target: object, patch: object) -> object:
    """Return `target` with a JSON merge patch applied; null removes a field."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = merge_patch(merged.get(field), value)
    return merged
