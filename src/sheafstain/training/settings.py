"""Frozen dataclasses read from YAML and from a command line, with errors that name the place and the nearest name.

A configuration is flat on its way in: dotted keys, each with its value and where that was written. So a file that
extends another, and a command line that changes a file, are both one table laid over another.

    --data.root ~/BCI --optimiser.lr=1e-4 --engine.compile
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from sheafstain.errors import UsageError

Config = TypeVar("Config")
EXTENDS = "extends"
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_NONE = ("none", "null", "")


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was written, and where."""

    value: Any  # a scalar or a list of scalars
    where: str  # "configs/tiny.yaml, line 7", or "--batch"


Table = dict[str, Given]


def read_table(path: Path | str, _seen: tuple[Path, ...] = ()) -> Table:
    """The dotted keys of a YAML file, laid over those of the file that it ``extends``."""
    path = Path(path)
    if path.resolve() in _seen:
        raise UsageError(f"{path}: extends itself, by way of {', '.join(map(str, _seen))}; end the circle")
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such configuration; those that are shipped lie in configs/") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path}: is a folder, not a configuration in YAML") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not YAML ({' '.join(str(error).split())})") from error
    own = {} if root is None else _flat(root, str(path), "")
    if (base := own.pop(EXTENDS, None)) is None:
        return own
    if not isinstance(base.value, str):
        raise UsageError(f"{base.where}: extends names one other file")
    return read_table(path.parent / base.value, (*_seen, path.resolve())) | own


def _flat(node: yaml.Node, path: str, prefix: str) -> Table:
    where = f"{path}, line {node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        if not prefix:
            raise UsageError(f"{path}: a configuration is a table of settings, as in configs/tiny.yaml")
        return {prefix: Given(_plain(node, where), where)}
    table: Table = {}
    for key, value in node.value:
        name = f"{prefix}.{key.value}" if prefix else str(key.value)
        inner = _flat(value, path, name)
        if twice := table.keys() & inner.keys():
            raise UsageError(f"{path}, line {key.start_mark.line + 1}: {min(twice)} is set twice")
        table |= inner
    return table


def _plain(node: yaml.Node, where: str) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, where) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        raise UsageError(f"{where}: a list of tables is no setting")
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except yaml.YAMLError as error:  # a tag such as !!python/object
        raise UsageError(f"{where}: is no plain value ({' '.join(str(error).split())})") from error
    finally:
        loader.dispose()


def read_arguments(arguments: Sequence[str]) -> Table:
    """``--key value``, ``--key=value``, ``--key`` alone for yes, and ``-o`` for the output as in other commands."""
    table: Table = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        word = "--output" if word == "-o" else word
        if not word.startswith("--") or word == "--":
            raise UsageError(f"{word!r} is no setting: settings are given as --key.sub value")
        key, given, value = word[2:].partition("=")
        if not given:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        table[key.replace("-", "_")] = Given(value, f"--{key}")
    return table


def build(cls: type[Config], table: Table, kinds: Mapping[str, Any] | None = None) -> Config:
    """The dataclass that the table describes; ``kinds`` says of which type a key is, where the class does not."""
    names: list[str] = []
    built = _build(cls, "", table, kinds or {}, names)
    for key, given in table.items():
        if key not in names:
            raise UsageError(f"{given.where}: there is no setting {key!r}{_nearest(key, names)}")
    return built


def as_tree(config: Any) -> dict[str, Any]:
    """Nested plain values, what YAML and JSON hold."""
    return {
        key: as_tree(value) if dataclasses.is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        for key, value in ((item.name, getattr(config, item.name)) for item in dataclasses.fields(config))
    }


def as_flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys and plain values."""
    flat: dict[str, Any] = {}
    for key, value in as_tree(config).items():
        if dataclasses.is_dataclass(getattr(config, key)):
            flat |= as_flat(getattr(config, key), f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def as_yaml(config: Any) -> str:
    return yaml.safe_dump(as_tree(config), sort_keys=False)  # escaped: PyYAML loses some line breaks otherwise


def _build(cls: Any, prefix: str, table: Table, kinds: Mapping[str, Any], names: list[str]) -> Any:
    hints = get_type_hints(cls) | {key: kind for key, kind in kinds.items() if "." not in key and not prefix}
    arguments: dict[str, Any] = {}
    missing: list[str] = []
    for item in dataclasses.fields(cls):
        key, kind = prefix + item.name, hints[item.name]
        if dataclasses.is_dataclass(kind):
            if key in table:
                raise UsageError(f"{table[key].where}: {key} is a table of settings, not {table[key].value!r}")
            arguments[item.name] = _build(kind, f"{key}.", table, kinds, names)
            continue
        names.append(key)
        if key in table:
            arguments[item.name] = _converted(table[key], kind, key)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            missing.append(key)
    if missing:
        raise UsageError(f"{missing[0]} has no default: write it into the file or give --{missing[0]} VALUE")
    try:
        return cls(**arguments)
    except ValueError as error:
        raise UsageError(f"{_wheres(prefix, table)}{error}") from error


def _wheres(prefix: str, table: Table) -> str:
    """The last place where something of a section was set."""
    places = [given.where for key, given in table.items() if key.startswith(prefix)]
    return f"{places[-1]}: " if places else ""


def _converted(given: Given, kind: Any, key: str) -> Any:
    try:
        return _as(given.value, kind)
    except (ValueError, TypeError):
        raise UsageError(f"{given.where}: {key} is {_said(kind)}, not {given.value!r}") from None


def _as(value: Any, kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in parts and (value is None or (isinstance(value, str) and value.lower() in _NONE)):
            return None
        (kind,) = (part for part in parts if part is not type(None))
        return _as(value, kind)
    if origin is Literal:
        if value in parts:
            return value
        raise ValueError(value)
    if origin is tuple:
        items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or (parts[-1] is not Ellipsis and len(items) != len(parts)):
            raise ValueError(value)
        kinds = [parts[0]] * len(items) if parts[-1] is Ellipsis else parts
        return tuple(_as(item, kind) for item, kind in zip(items, kinds, strict=True))
    if kind is bool:
        return _as_bool(value)
    if kind is str:
        if not isinstance(value, str):
            raise ValueError(value)
        return value
    if isinstance(value, bool) or value is None:
        raise ValueError(value)
    number = float(value)  # YAML takes 2e-4 for a word
    if kind is int:
        if number != int(number):
            raise ValueError(value)
        return int(value) if isinstance(value, str) and value.lstrip("+-").isdecimal() else int(number)
    return number


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(value)
    return word in _TRUE


def _said(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if part is type(None) else _said(part) for part in parts)
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin is tuple:
        return f"a list of {_said(parts[0])}" if parts[-1] is Ellipsis else ", ".join(map(_said, parts))
    return {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}.get(kind, str(kind))


def _nearest(key: str, names: Sequence[str]) -> str:
    last = key.rpartition(".")[2]
    near = [name for name in names if name.rpartition(".")[2] == last]  # the right name in the wrong table
    near = near or difflib.get_close_matches(key, names, n=1) or [
        name for word in difflib.get_close_matches(last, [n.rpartition(".")[2] for n in names], n=1)
        for name in names if name.rpartition(".")[2] == word
    ]  # fmt: skip
    return f"; did you mean {near[0]!r}?" if near else ""
