"""Files of YAML, or JSON, that somebody wrote by hand: what is wrong is said in one line."""

from pathlib import Path

import yaml

from gpushare.errors import SettingsError


def read_yaml(path: str) -> object:
    """Return the document of a file; None where it is empty. Raises SettingsError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, where: str) -> object:
    """Return the document of a text that is found there; None where it is empty.

    Raises SettingsError.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"{where}: {' '.join(str(error).split())}") from error
