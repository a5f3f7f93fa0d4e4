"""What is written about a classifier, and several of them side by side."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.studies.her2 import Protocol
from sheafstain.studies.her2_cases import Case, CaseSet
from sheafstain.studies.her2_comparison import PAPER, Comparison, draw_roc
from sheafstain.studies.her2_measures import Confusion
from sheafstain.studies.her2_report import CAVEATS, Result, read_result
from sheafstain.window import Size


def cases(counts: dict[str, int], split: str, side: int = 1024, sha256: str = "a") -> CaseSet:
    listed = [
        Case(f"{i:05d}_{split}_{grade}", grade, Path(split) / f"{i:05d}_{split}_{grade}.png")
        for grade, count in counts.items()
        for i in range(count)
    ]
    return CaseSet(Path(split), tuple(listed), Size(side, side), 0, sha256)


BCI_TEST = {"0": 80, "1+": 193, "2+": 400, "3+": 304}  # classes as published: 273 and 704; grades do not matter here
BCI_TRAIN = {"0": 240, "1+": 1000, "2+": 1656, "3+": 1000}


@cache
def result(name: str = "method", shift: float = 1.5, positive: str = "High", seed: int = 0, **settings) -> Result:
    """On the counts of BCI, with scores whose classes lie ``shift`` standard deviations apart."""
    train, test = cases(BCI_TRAIN, "train"), cases(BCI_TEST, "test")
    p_high = 1 / (1 + np.exp(-np.random.default_rng(seed).normal(shift * (test.high - 0.5))))
    return Result.of(name, "translated", positive, Protocol(**settings), "0123abcd", train, test, [0.7, 0.2], p_high)


def test_json_and_back(tmp_path: Path):
    one = result()
    file = tmp_path / "method.json"
    file.write_text(one.to_text())
    assert read_result(file) == one
    said = json.loads(one.to_text())
    assert said["constant_answers"]["always High"]["accuracy"] == pytest.approx(704 / 977)
    counts = said["confusion"]
    assert (counts["tp"] + counts["fn"], counts["fp"] + counts["tn"]) == (704, 273)
    assert said["measures"]["auroc"]["value"] == pytest.approx(0.856, abs=0.03)  # Φ(1.5/√2)
    assert said["caveats"] == list(CAVEATS)
    assert said["departures_from_the_paper"] == []
    assert said["protocol"]["optimiser"].startswith("Adam") and said["protocol"]["weights"] == "0123abcd"
    assert {said["versions"][package] for package in ("torch", "numpy")}.isdisjoint({"not installed"})
    assert said["test"]["High"] == 704 and said["train"]["images"] == 3896
    assert said["roc"]["threshold"][0] is None


def test_csv_holds_what_the_measures_are_of():
    one = result()
    rows = list(csv.DictReader(io.StringIO(one.to_csv())))
    assert len(rows) == 977
    right = sum(row["truth"] == row["answer"] for row in rows)
    assert right / 977 == pytest.approx(one.measures["accuracy"].value)
    assert [float(row["p_high"]) for row in rows] == [image.p_high for image in one.images]
    assert all((row["truth"] == "High") == (row["grade"] in ("2+", "3+")) for row in rows)


def test_low_as_positive():
    high, low = result(), result(positive="Low")
    assert low.measures["auroc"].value == pytest.approx(high.measures["auroc"].value)
    assert low.measures["sensitivity"].value == high.measures["specificity"].value
    assert low.confusion == Confusion(
        tp=high.confusion.tn, fn=high.confusion.fp, fp=high.confusion.fn, tn=high.confusion.tp
    )
    assert low.constants["always Low"]["f1"].value == pytest.approx(2 * 273 / (977 + 273))
    assert low.constants["always High"]["f1"].value == 0
    assert low.to_csv() == high.to_csv(), "what was answered does not depend on what is called positive"


def test_departures_are_named():
    test = cases({"0": 3, "3+": 5}, "test", 256)
    protocol = Protocol("resnet18", "random", epochs=5, batch=8, lr=1e-3)
    assert protocol.deviations(cases({"0": 8, "3+": 8}, "train", 256), test) == [
        "backbone resnet18, the paper has resnet50",
        "epochs 5, the paper has 100",
        "batch 8, the paper has 16",
        "lr 0.001, the paper has 0.0001",
        "starts from random weights, the paper from ImageNet's",
        "images of 256×256 px, the paper has 1024×1024",
        "16 training images, the paper has 3896",
        "3 Low and 5 High test images, the paper has 273 and 704: not the BCI test set",
    ]


def test_markdown_says_what_has_to_be_known():
    text = result(epochs=7).to_markdown()
    for part in (
        "Research use only",
        "| accuracy |",
        "| 0.7206 |",  # always High
        "patient",
        "HER2-low",
        "epochs 7, the paper has 100",
        "Adam",
    ):
        assert part in text, part
    lines = [line for line in text.splitlines() if line.startswith("| AUROC")]
    assert len(lines) == 1 and lines[0].endswith("| 0.5000 | 0.5000 |")


@pytest.mark.parametrize("content", ["{}", "[1]", '{"format": 99}', "no json"])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(SheafStainError, match=f"{file}: not a JSON result of sheafstain her2"):
        read_result(file)
    with pytest.raises(SheafStainError, match="no such result"):
        read_result(tmp_path / "y.json")


def test_a_comparison(tmp_path: Path):
    comparison = Comparison.of([result("good"), result("poor", shift=0.2, seed=1), result("half", epochs=50)])
    text = comparison.to_markdown()
    for name in ("| good |", "| poor |", "| always High | 0.721 | 0.838 | 0.500 | 0.500 |", "| paper: UNSB | 0.524 |"):
        assert name in text, name
    assert "The protocols differ in epochs: good 100, poor 100, half 50." in text
    assert "Departs from the paper (half): epochs 50" in text
    assert comparison.differences[0] is None
    poor, half = comparison.differences[1:]
    assert poor is not None and poor.interval is not None and poor.interval[1] < 0
    assert half is not None and half.value == 0
    json.dumps(comparison.as_json(), allow_nan=False)

    figure = draw_roc(comparison.results, tmp_path / "figures" / "roc.png")
    with Image.open(figure) as image:
        assert image.size == (930, 900) and "research use only" in image.info["Description"]
    assert [path.name for path in figure.parent.iterdir()] == ["roc.png"]


def test_only_results_of_one_test_set_are_compared():
    one = result("one")
    train, other_test = cases(BCI_TRAIN, "train"), cases(BCI_TEST, "test", sha256="b")
    other = Result.of(
        "two", "translated", "High", Protocol(), "", train, other_test, [], np.linspace(0, 1, len(other_test.cases))
    )
    with pytest.raises(SheafStainError, match="two: was tested on other images than one"):
        Comparison.of([one, other])
    with pytest.raises(SheafStainError, match="has Low as positive, one has High"):
        Comparison.of([one, result("two", positive="Low")])
    with pytest.raises(UsageError, match="two of the results are called one"):
        Comparison.of([one, result("one")])


def test_the_papers_rows_are_possible():
    """A printed accuracy and F1 on 704 High and 273 Low leave whole counts whose accuracy and F1 print the same."""
    for name, (accuracy, f1, _) in PAPER.items():
        counts = Confusion.implied(accuracy, f1, 704, 273)
        assert (counts.tp + counts.tn) / 977 == pytest.approx(accuracy, abs=0.001), name
        assert 2 * counts.tp / (2 * counts.tp + counts.fp + counts.fn) == pytest.approx(f1, abs=0.001), name
    assert Confusion.implied(0.708, 0.826, 704, 273).balanced_accuracy == pytest.approx(0.51, abs=0.01)  # CycleGAN
