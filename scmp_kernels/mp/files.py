"""JSON objects in files: read with errors that name the file, written with their folder made."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from scmp_kernels.sc.rng import one_line


def read_object(owner: str, path: str | PathLike) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        ValueError: the file holds something else; the message is `owner`'s, which names the file.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError too
        raise ValueError(f"{owner}: must be a JSON file: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{owner}: must hold a JSON object, got {one_line(content)}")
    return content


def prepare_path(path: str | PathLike) -> Path:
    """The path of a file to write, its folder made where needed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_object(path: str | PathLike, content: dict[str, Any]) -> Path:
    """Write a JSON object and return the path of the file."""
    path = prepare_path(path)
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path
