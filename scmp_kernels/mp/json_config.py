"""Configs that go to a JSON file and back."""

from dataclasses import MISSING, Field, fields
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from scmp_kernels.mp.files import read_object, write_object
from scmp_kernels.sc.rng import one_line

_Self = TypeVar("_Self", bound="JsonConfig")


def _fields(config: Any) -> tuple[Field, ...]:
    """Those of a config, which is a dataclass by its subclass."""
    return fields(config)


class JsonConfig:
    """What the configs share: JSON files with one key per field."""

    def to_json(self, path: str | PathLike) -> Path:
        """Write the config to a JSON file, making its folder where needed.

        Args:
            path: of the file.

        Returns:
            Path of the file.
        """
        return write_object(path, self._to_content())

    @classmethod
    def from_json(cls: type[_Self], path: str | PathLike) -> _Self:
        """Read a file of `to_json`; fields that it leaves out have their defaults.

        Args:
            path: of the file.

        Returns:
            The config.

        Raises:
            ValueError: the file is malformed; the message names the file and the key.
            OSError: the file cannot be read.
        """
        owner = f"{cls.__name__}.from_json: {path}"
        content = read_object(owner, path)
        known = {
            f.name: f.default is MISSING and f.default_factory is MISSING for f in _fields(cls)
        }
        for name, required in known.items():
            if required and name not in content:
                raise ValueError(
                    f"{owner}: must have the key {name!r}, got {one_line(list(content))}"
                )
        for name in content:
            if name not in known:
                raise ValueError(
                    f"{owner}: may have the keys {', '.join(known)}, got {one_line(name)}"
                )
        try:
            return cls._from_content(owner, content)
        except ValueError as error:
            text = str(error).removeprefix(f"{cls.__name__}: ").removeprefix(f"{owner}: ")
            raise ValueError(f"{owner}: {text}") from None

    def _to_content(self) -> dict[str, Any]:
        """What the file holds."""
        return {f.name: getattr(self, f.name) for f in _fields(self)}

    @classmethod
    def _from_content(cls: type[_Self], owner: str, content: dict[str, Any]) -> _Self:
        """The config of what a file holds."""
        return cls(**content)
