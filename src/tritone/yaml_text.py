"""Reading YAML that strangers wrote.

bytes  ->  maps, lists and plain values, or an error that names the file
"""

from typing import Any

import yaml

from tritone.errors import InputError, TritoneError
from tritone.paths import plain_text


def read_yaml(
    data: bytes, origin: str, error: type[TritoneError] = InputError, loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> Any:
    """What a YAML file holds, whatever that is; `origin` names it in errors, as in "config x/train.yaml".

    `loader`: one that takes less than YAML allows.

    Raises:
        TritoneError: it is not UTF-8, no YAML, or nested too deeply; of the class `error`.
    """
    try:
        return yaml.load(plain_text(data), loader)
    except UnicodeDecodeError as wrong:
        raise error(f"{origin} is not UTF-8 text ({wrong.reason} at byte {wrong.start})") from wrong
    except RecursionError as wrong:
        raise error(f"{origin} is nested too deeply to be read; a file of settings has a few levels") from wrong
    except (yaml.YAMLError, ValueError) as wrong:  # ValueError: a date that there is not
        raise error(f"{origin} is not valid YAML: {' '.join(str(wrong).split())[:300]}") from wrong
