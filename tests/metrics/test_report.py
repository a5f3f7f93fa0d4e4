"""Reports: what goes in comes out, undefined is named, and only like is compared with like."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.metrics import comparison, tables
from sheafstain.metrics.catalogue import BY_KEY, CATALOGUE
from sheafstain.metrics.comparison import compare
from sheafstain.metrics.protocol import choose, entry
from sheafstain.metrics.report import Image, Report, Result, read_report, write_files
from sheafstain.metrics.sources import Fault
from sheafstain.metrics.statistics import summarise

NAN, INF = math.nan, math.inf


def report(
    name: str,
    columns: Mapping[str, Sequence[float]],
    real: Mapping[str, Sequence[float]] | None = None,
    sets: Mapping[str, float] | None = None,
    **fields: Any,
) -> Report:
    """A report as the suite would make it of these per-image columns and set values."""
    real, sets = real or {}, sets or {}
    n = len(next(iter(columns.values())))
    names = [f"image{i}" for i in range(n)]
    metrics = {key: entry(BY_KEY[key]) for key in (*sets, *columns)}
    images = tuple(
        Image(
            name=names[i],
            hashes={"pred": f"{name}{i}", "real": f"real{i}"},
            size=(64, 48),
            values={key: values[i] for key, values in columns.items()},
            sides={key: {"real": values[i]} for key, values in real.items()},
        )
        for i in range(n)
    )
    common = {
        key: {"label": BY_KEY[key].label, "better": BY_KEY[key].better, "latex": BY_KEY[key].latex} for key in metrics
    }
    results = [
        Result(
            key=key,
            value=value,
            std=None,
            std_of="images",
            interval=None,
            no_interval="of its nature",
            n=n,
            details=metrics[key],
            **common[key],
        )
        for key, value in sets.items()
    ]
    results += [
        Result.from_summary(
            summarise(values),
            names,
            values,
            key=key,
            details=metrics[key],
            undefined_reason="it was so",
            sides={"real": sum(real[key]) / n} if key in real else {},
            **common[key],
        )
        for key, values in columns.items()
    ]
    protocol = {
        "metrics": metrics,
        "borders": None,
        "resize": None,
        "windows": None,
        "bootstrap": {"method": "bootstrap", "resamples": 5000, "seed": 0},
        "sample": None,
    }
    made = {
        "name": name,
        "protocol": protocol,
        "versions": {"sheafstain": "1"},
        "results": tuple(results),
        "images": images,
    }
    return Report(**{**made, **fields})


@pytest.fixture
def full() -> Report:
    return report(
        "a_b",
        {"psnr": [20.0, INF, 22.0], "ts": [0.1, NAN, 0.3], "dab-r": [0.5, -0.25, 0.125]},
        real={"ts": [0.2, 0.2, 0.2]},
        sets={"fid": 36.3626, "kid": 4.207},
        left_out=(Fault("LPIPS", "no weights"),),
        unreadable=(Fault("image9", "image9.png: is truncated"),),
        unpaired=("lonely.png",),
    )


def test_round_trip(full: Report, tmp_path: Path):
    (tmp_path / "report.json").write_text(full.to_text())
    again = read_report(tmp_path)
    assert again.to_text() == full.to_text()
    assert again.results == full.results
    assert repr(again.images) == repr(full.images)  # NaN is not equal to itself
    assert repr(read_report(tmp_path / "report.json")) == repr(again)


def test_json_knows_no_nan(full: Report):
    said = json.loads(full.to_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    values = [image["values"] for image in said["images"]]
    assert values[1] == {"psnr": "inf", "ts": None, "dab-r": -0.25}
    assert said["n"] == 3
    assert "research use only" in said["notice"]


def test_undefined_and_infinite_are_named_and_not_averaged(full: Report):
    ts, psnr = full.result("ts"), full.result("psnr")
    assert ts is not None and psnr is not None
    assert (ts.value, ts.n, ts.undefined) == (pytest.approx(0.2), 2, ("image1",))
    assert (psnr.value, psnr.infinite) == (21.0, ("image1",))
    said = "\n".join(tables.remarks(full))
    assert "TS: undefined for 1 image (image1): it was so" in said
    assert "PSNR: infinite for 1 image (image1): pred equals real" in said
    assert "LPIPS: left out, no weights" in said
    assert "image9.png: is truncated" in said and "lonely.png" in said


def test_csv_has_every_value_and_no_other(full: Report):
    rows = list(csv.DictReader(io.StringIO(full.to_csv())))
    assert [row["image"] for row in rows] == ["image0", "image1", "image2"]
    assert [row["ts"] for row in rows] == ["0.1", "", "0.3"]
    assert [row["psnr"] for row in rows] == ["20.0", "inf", "22.0"]
    assert {row["ts real"] for row in rows} == {"0.2"}
    assert rows[0]["height"] == "64" and rows[0]["width"] == "48"


@pytest.mark.parametrize(("write", "minus"), [(tables.markdown, "−"), (tables.latex, "$-$")])
def test_every_number_has_its_definition_and_its_circumstances(full: Report, write: Any, minus: str):
    text = write(full)
    for result in full.results:
        assert result.details["definition"] in text
        assert result.details["resizer"] in text
        assert result.details["library"] in text
    assert "36.3626" in text and "4.2070" in text
    assert "research use only" in text
    interval = full.result("dab-r")
    assert interval is not None and tables.interval(interval).replace("−", minus) in text


def test_latex_is_laid_out_as_in_the_paper(full: Report):
    text = tables.latex(full)
    assert r"Method & FID$\downarrow$ & KID$\times10^{3}$$\downarrow$ & PSNR$\uparrow$ & TS$\downarrow$ \\" in text
    assert r"a\_b & 36.3626 & 4.2070 & 21.0000{\scriptsize$\pm$1.4142} & 0.2000{\scriptsize$\pm$0.1414} \\" in text
    assert r"\textit{real IHC} &  &  &  & 0.2000 \\" in text
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert all(line.isascii() for line in body), "pdflatex takes no other letters"
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    braces = "".join(body).replace(r"\{", "").replace(r"\}", "")
    assert braces.count("{") == braces.count("}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.46891, "0.4689"),
        (1234.56, "1234.6"),
        (0.0, "0.0000"),
        (2.1e-5, "2.1e-05"),
        (NAN, "–"),
        (INF, "∞"),
        (None, "–"),
    ],
)
def test_numbers_as_shown(value: float | None, text: str):
    assert tables.shown(value) == text


def test_files_go_into_a_folder_or_one_of_them_where_it_is_asked_for(tmp_path: Path):
    texts = {".json": "{}", ".md": "#"}
    assert {path.name for path in write_files(tmp_path / "out", "report", texts)} == {"report.json", "report.md"}
    assert write_files(tmp_path / "one.md", "report", texts) == [tmp_path / "one.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.md", "out"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "name": "x"}'])
def test_what_is_no_report_is_named(content: str, tmp_path: Path):
    file = tmp_path / "report.json"
    file.write_text(content)
    with pytest.raises(SheafStainError, match=r"report\.json: not a JSON report"):
        read_report(tmp_path)
    with pytest.raises(SheafStainError, match="no such report"):
        read_report(tmp_path / "other.json")


# --- the catalogue ---------------------------------------------------------------------------------------------------


def test_choosing():
    everything = choose((), ("encoder", "borders", "windows"))
    assert [metric.key for metric in everything] == [metric.key for metric in CATALOGUE if not metric.extra]
    assert not [metric for metric in choose((), ()) if metric.needs]
    assert [metric.key for metric in choose(("ssim", "psnr", "lpips-vgg"), ())] == ["lpips-vgg", "psnr", "ssim"]
    assert {metric.group for metric in choose(("seam", "fid"), ())} == {"seam", "distribution"}
    assert [metric.key for metric in choose(("dab-p90-r",), ())] == ["dab-p90", "dab-p90-r"]
    with pytest.raises(UsageError, match="did you mean psnr"):
        choose(("pnsr",), ())
    with pytest.raises(UsageError, match="needs --windows"):
        choose(("dirichlet",), ())


def test_entries_are_complete():
    for metric in CATALOGUE:
        said = entry(metric, encoder="e 0", borders="lattice-192")
        assert said["definition"] and "{" not in said["definition"]
        assert metric.label and said["library"].split()[1]
        assert bool(metric.weights) == ("weights" in said)
    assert entry(BY_KEY["dab-kl"])["direction"] != entry(BY_KEY["dab-kl-reverse"])["direction"]
    assert entry(BY_KEY["fid"])["resizer"] != entry(BY_KEY["fid-clean"])["resizer"]


# --- comparing -------------------------------------------------------------------------------------------------------


def three() -> list[Report]:
    return [
        report("ours", {"ts": [0.1, 0.2, 0.3], "seam-excess": [0.0, 0.01, -0.01]}, {"ts": [0.1] * 3}, {"fid": 36.0}),
        report("theirs", {"ts": [0.2, 0.3, 0.4], "seam-excess": [-0.3, -0.2, -0.1]}, {"ts": [0.1] * 3}, {"fid": 67.0}),
        report("others", {"ts": [0.2, 0.1, 0.9], "seam-excess": [0.1, 0.1, 0.1]}, {"ts": [0.1] * 3}, {"fid": 30.0}),
    ]


def test_best_and_second_best():
    marks = compare(three()).marks
    assert marks["fid"] == {"others": "best", "ours": "second"}
    assert marks["ts"] == {"ours": "best", "theirs": "second"}
    assert marks["seam-excess"] == {"ours": "best", "others": "second"}  # −0.2 is farther from 0 than 0.1


def test_equal_values_share_the_mark_and_two_methods_have_no_second():
    a, b = report("a", {"psnr": [1.0, 2.0]}), report("b", {"psnr": [2.0, 1.0]})
    assert compare([a, b]).marks["psnr"] == {"a": "best", "b": "best"}
    worse = report("c", {"psnr": [1.0, 1.0]})
    assert compare([a, worse]).marks["psnr"] == {"a": "best"}
    assert compare([worse, a, b]).marks["psnr"] == {"a": "best", "b": "best", "c": "second"}


def test_marks_in_every_form():
    three_of_them = compare(three())
    text = comparison.latex(three_of_them)
    assert r"ours & \underline{36.0000} & \textbf{0.2000{\scriptsize$\pm$0.1000}} \\" in text
    text = comparison.markdown(three_of_them)
    assert "| FID↓ | <u>36.0000</u> | 67.0000 | **30.0000** |" in text
    rows = comparison.rows(three_of_them, {"best": "{} *", "second": "{} +"})
    assert rows[0] == ["FID↓", "36.0000 +", "67.0000", "30.0000 *", ""]
    assert rows[1][-1] == "0.1000", "the real IHC beside TS"


def test_paired_by_image_whatever_the_order():
    ours, theirs, others = three()
    shuffled = replace(theirs, images=tuple(reversed(theirs.images)))
    pairs = {(p.key, p.other): p for p in compare([ours, shuffled, others]).pairings}
    assert set(pairs) == {(key, other) for key in ("ts", "seam-excess") for other in ("theirs", "others")}
    ts = pairs["ts", "theirs"].paired
    assert (ts.difference, ts.losses, ts.wins) == (pytest.approx(0.1), 3, 0)
    assert ts.interval == (pytest.approx(0.1), pytest.approx(0.1))
    assert pairs["ts", "others"].paired.wins == 1
    assert pairs["seam-excess", "others"].paired.difference == pytest.approx(0.1 - 0.02 / 3)


def test_the_csv_has_one_row_an_image_and_metric():
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv(compare(three())))))
    assert len(rows) == 6
    assert rows[0] == {"metric": "ts", "image": "image0", "ours": "0.1", "theirs": "0.2", "others": "0.2"}
    said = json.loads(comparison.texts(compare(three()))[".json"])
    assert [method["name"] for method in said["methods"]] == ["ours", "theirs", "others"]


def other_entry(key: str, **changes: str) -> dict[str, Any]:
    return {"metrics": {key: entry(BY_KEY[key]) | changes}}


def test_other_protocols_are_refused_with_what_differs():
    a, b = report("a", {"psnr": [1.0, 2.0]}), report("b", {"psnr": [2.0, 1.0]})

    def refused(other: Report, said: str) -> None:
        with pytest.raises(SheafStainError, match=f"a and b cannot be compared: .*{said}"):
            compare([a, other])

    refused(replace(b, protocol=dict(b.protocol) | {"resize": "bicubic"}), "resize is absent and bicubic")
    refused(
        replace(b, protocol=dict(b.protocol) | other_entry("psnr", definition="dB")), "definition of psnr is .* and dB"
    )
    refused(replace(b, protocol=dict(b.protocol) | other_entry("psnr", resizer="none")), "resizer of psnr")
    refused(replace(b, images=b.images[:1]), r"N is 2 and 1; 1 images are in one only \(image1\)")
    moved = replace(b.images[1], hashes={"pred": "b1", "real": "another"})
    refused(replace(b, images=(b.images[0], moved)), r"the real images differ for 1 \(image1\)")


def test_another_version_is_told_and_not_refused():
    a, b = report("a", {"psnr": [1.0, 2.0]}), report("b", {"psnr": [2.0, 1.0]})
    newer = replace(b, protocol=dict(b.protocol) | other_entry("psnr", library="torchmetrics 99"))
    assert any("torchmetrics 99" in note for note in comparison.notes(compare([a, newer])))


def test_own_borders_may_differ():
    def at(name: str, borders: str) -> Report:
        made = report(name, {"ts-borders": [0.1, 0.2]})
        said = {"ts-borders": entry(BY_KEY["ts-borders"], borders=borders)}
        return replace(made, protocol=dict(made.protocol) | {"borders": borders, "metrics": said})

    notes = comparison.notes(compare([at("a", "multiples-of-256"), at("b", "lattice-192")]))
    assert any("lattice-192" in note for note in notes)


def test_a_metric_that_one_report_lacks_is_a_gap_and_not_an_error():
    a, b = report("a", {"psnr": [1.0, 2.0], "ssim": [0.1, 0.2]}), report("b", {"psnr": [2.0, 1.0]})
    found = compare([a, b])
    assert comparison.rows(found, {})[1][1:3] == ["0.1500 ± 0.0707", "–"]
    assert any("b has no SSIM" in note for note in comparison.notes(found))
    assert compare([a, b], ("psnr",)).keys == ("psnr",)
    with pytest.raises(UsageError, match="in none of the reports"):
        compare([a, b], ("fid",))


def test_too_few_and_namesakes():
    a = report("a", {"psnr": [1.0, 2.0]})
    with pytest.raises(UsageError):
        compare([a])
    with pytest.raises(SheafStainError, match="called a"):
        compare([a, a])
