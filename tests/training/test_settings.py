"""YAML and command lines become dataclasses, or one line says where the mistake is and what was meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sheafstain.errors import UsageError
from sheafstain.training.settings import as_flat, as_tree, as_yaml, build, read_arguments, read_table


@dataclass(frozen=True, slots=True)
class Inner:
    lr: float = 0.1
    betas: tuple[float, float] = (0.5, 0.9)
    many: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError("lr is positive")


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    count: int = 3
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    flag: bool = False
    inner: Inner = field(default_factory=Inner)


def written(folder: Path, text: str, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_and_a_command_line(tmp_path: Path):
    path = written(tmp_path, "name: x\ninner:\n  lr: 2e-4\n  betas: [0.1, 0.2]\nflag: yes\n")
    arguments = ["--count=7", "--inner.many", "1,2,3", "--limit", "5", "--kind", "b", "--inner.betas", "0.3,0.4"]
    found = build(Outer, read_table(path) | read_arguments(arguments))
    assert found == Outer("x", 7, "b", 5, True, Inner(2e-4, (0.3, 0.4), (1, 2, 3)))


def test_a_flag_alone_is_yes_and_none_is_none(tmp_path: Path):
    table = read_table(written(tmp_path, "name: x\nlimit: 4\n"))
    assert build(Outer, table | read_arguments(["--flag", "--limit", "none"])) == Outer("x", flag=True)
    assert build(Outer, table | read_arguments(["--flag", "off", "--inner.lr", "-0"])).flag is False


def test_extending(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    written(tmp_path, "name: base\ncount: 1\ninner: {lr: 0.5}\n", "base.yaml")
    middle = written(tmp_path / "sub", "extends: ../base.yaml\ncount: 2\n", "middle.yaml")
    last = written(tmp_path / "sub", "extends: middle.yaml\ninner: {betas: [0, 0]}\n", "last.yaml")
    assert build(Outer, read_table(middle)) == Outer("base", 2, inner=Inner(0.5))
    assert build(Outer, read_table(last)) == Outer("base", 2, inner=Inner(0.5, (0, 0)))


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("name: x\ncuont: 1\n", [], "a.yaml, line 2: there is no setting 'cuont'; did you mean 'count'?"),
        ("name: x\n", ["--lr", "1"], "--lr: there is no setting 'lr'; did you mean 'inner.lr'?"),
        ("name: x\n", ["--iner.lr", "1"], "--iner.lr: there is no setting 'iner.lr'; did you mean 'inner.lr'?"),
        ("name: x\ncount: 1.5\n", [], "a.yaml, line 2: count is a whole number, not 1.5"),
        ("name: x\ncount: true\n", [], "line 2: count is a whole number, not True"),
        ("name: x\ninner:\n  lr: fast\n", [], "a.yaml, line 3: inner.lr is a number, not 'fast'"),
        ("name: x\n", ["--kind", "c"], "--kind: kind is one of a, b, not 'c'"),
        ("name: 5\n", [], "line 1: name is a word, not 5"),
        ("name: x\n", ["--limit", "1.5"], "--limit: limit is a whole number or none, not '1.5'"),
        ("name: x\nflag: 1\n", [], "flag is true or false, not 1"),
        ("name: x\ninner: 5\n", [], "line 2: inner is a table of settings, not 5"),
        ("name: x\ninner: {betas: [1]}\n", [], "inner.betas is"),
        ("name: x\ninner:\n  lr: -1\n", [], "a.yaml, line 3: lr is positive"),
        ("count: 1\n", [], "name has no default: write it into the file or give --name VALUE"),
        ("name: x\nname: y\n", [], "line 2: name is set twice"),
        ("- 1\n", [], "a.yaml: a configuration is a table"),
        ("name: [x\n", [], "a.yaml: is not YAML"),
        ("name: !!python/object/apply:os.system ['true']\n", [], "line 1"),
        ("name: x\n", ["count"], "'count' is no setting: settings are given as --key.sub value"),
        ("extends: a.yaml\n", [], "a.yaml: extends itself"),
        ("extends: b.yaml\n", [], "b.yaml: no such configuration"),
        ("extends: [1]\n", [], "line 1: extends names one other file"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, arguments: list[str], message: str):
    with pytest.raises(UsageError) as caught:
        build(Outer, read_table(written(tmp_path, text)) | read_arguments(arguments))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path):
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            read_table(path)


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
outers = st.builds(
    Outer,
    name=names,
    count=st.integers(-(2**53), 2**53),
    kind=st.sampled_from(["a", "b"]),
    limit=st.none() | st.integers(0, 10**6),
    flag=st.booleans(),
    inner=st.builds(
        Inner,
        lr=st.floats(0, 1e9),
        betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
        many=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
)


@given(config=outers)
def test_what_is_saved_is_what_is_read(config: Any, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    path.write_text(as_yaml(config), encoding="utf-8")
    assert build(Outer, read_table(path)) == config
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == as_tree(config)


def test_flat_names():
    flat = as_flat(Outer("x", inner=Inner(many=(1,))))
    assert flat["inner.many"] == [1]
    assert set(flat) == {"name", "count", "kind", "limit", "flag", "inner.lr", "inner.betas", "inner.many"}
