"""Claims about studies: which are valid, and what the verdicts on them are.

The verdicts on the guides' claims stand in docs/measurements/; test_figures.py compares them.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from clew import names
from clew.errors import ConfigError, DataError
from experiments import claims, report

SPEED, GROWTH = names.EXAMPLES_PER_SECOND, names.PROCESS_GROWTH_GIB
REFERENCE, MIXED = "fp32, batch 256", "mixed, batch 256"
CLAIM = {"variant": MIXED, "metric": SPEED, "at_least": 2, "text": "2x"}
SHIPPED = {path.stem: path for path in sorted((claims.STUDIES / "claims").glob("*.yaml"))}


def written(folder: Path, *given: dict[str, Any]) -> Path:
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump({"study": "training", "claims": list(given)}))
    return path


def results(
    own: list[float], base: list[float], *, metric: str = SPEED, **changes: Any
) -> dict[str, Any]:
    """Return the content of a result file in which the variants measured these values."""
    rows = [
        {"variant": variant, "metric": metric, "values": dict(enumerate(values))}
        for variant, values in ((REFERENCE, base), (MIXED, own))
        if values
    ]
    content = {"study": "training (quick)", "reference": REFERENCE, "has_gpu": False}
    return content | {"results": rows} | changes


def verdict(claim: dict[str, Any], own: list[float], base: list[float], **changes: Any) -> str:
    """Return the verdict on a claim, given what each round measured."""
    content = results(own, base, metric=claim["metric"], **changes)
    judged = claims.Claims(study="training", claims=[claims.Claim(**claim)])
    (found,) = claims.judge(judged, claims.Results(**content))
    return found.verdict


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([2.4, 2.5, 2.6], "holds"),
        ([1.4, 1.5, 1.6], "does not hold"),
        ([1.9, 2.1, 2.6], "cannot be told from 3 rounds"),
        ([2.5], "cannot be told from 1 round"),
        ([], "open: not measured here"),
        ([2.4, 0.0, 2.6], "open: not measured here"),
    ],
)
def test_the_whole_interval_of_a_ratio_must_keep_the_bound(own: list[float], expected: str) -> None:
    assert verdict(CLAIM, own, [1.0] * 3) == expected


def test_what_slows_a_whole_round_down_cancels() -> None:
    claim = CLAIM | {"at_least": 1.4, "at_most": 1.6}
    assert verdict(claim, [15.0, 1.5, 150.0], [10.0, 1.0, 100.0]) == "holds"
    assert verdict(claim, [15.0, 1.5, 150.0], [1.0, 10.0, 100.0]) == "cannot be told from 3 rounds"


@pytest.mark.parametrize(
    ("changes", "expected", "value"),
    [
        ({"about": "value", "at_least": 280}, "holds", 301.0),
        ({"about": "value", "at_least": 400}, "does not hold", 301.0),
        ({"against": MIXED, "at_least": 1.5}, "does not hold", 1.0),
        ({"about": "difference", "at_least": 199, "at_most": 201}, "holds", 200.0),
    ],
)
def test_a_claim_may_be_about_a_value_a_difference_or_another_variant(
    changes: dict[str, Any], expected: str, value: float
) -> None:
    judged = claims.Claims(study="training", claims=[claims.Claim(**CLAIM | changes)])
    content = results([300.0, 301.0, 302.0], [100.0, 101.0, 102.0])
    (found,) = claims.judge(judged, claims.Results(**content))
    assert found.verdict == expected
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(value)


@pytest.mark.parametrize(("has_gpu", "expected"), [(True, "holds"), (False, "open: needs a GPU")])
def test_a_claim_that_needs_a_gpu_is_open_without_one(has_gpu: bool, expected: str) -> None:
    claim = CLAIM | {"needs": "gpu"}
    assert verdict(claim, [3.0, 3.1, 3.0], [1.0] * 3, has_gpu=has_gpu) == expected


def test_a_verdict_on_memory_names_the_memory() -> None:
    claim = {"variant": MIXED, "metric": GROWTH, "at_most": 0.5, "text": "half the process memory"}
    assert verdict(claim, [0.4, 0.41, 0.4], [1.0] * 3) == "holds (process memory)"
    assert verdict(claim, [0.9, 0.91, 0.9], [1.0] * 3) == "does not hold (process memory)"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"variant": "x"}, "'x'"),
        ({"against": "x"}, "'x'"),
        ({"metric": "x"}, "'x'"),
        ({"at_least": None}, "at_most"),
        ({"at_most": 1}, "at_most"),
        ({"metric": GROWTH, "text": "half of it"}, "process memory"),
        ({"at_leats": 1}, "at_leats"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        claims.load_claims(written(tmp_path, CLAIM | changes))
    assert named in str(refused.value)


def test_results_of_another_study_are_refused(tmp_path: Path) -> None:
    judged = claims.load_claims(written(tmp_path, CLAIM))
    with pytest.raises(ConfigError):
        claims.judge(judged, claims.Results(**results([2.0], [1.0], study="loss (quick)")))
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(DataError):
        claims.load_results(tmp_path / "results.json")


def test_the_command_judges_the_guides_claims_or_a_persons_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims.main([])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    judged = [name for name in SHIPPED if name in report.results(report.STUDIES)]
    expected = sum(len(claims.load_claims(SHIPPED[name]).claims) for name in judged)
    assert len(rows) - len(judged) == expected
    (tmp_path / "own.json").write_text(json.dumps(results([2.4, 2.5, 2.6], [1.0] * 3)))
    claims.main([str(written(tmp_path, CLAIM)), str(tmp_path / "own.json")])
    assert "| 2x | 2.5, 2.26 to 2.76 | holds |" in capsys.readouterr().out
    for wrong in (["one.yaml"], [str(tmp_path / "claims.yaml"), "nowhere.json"]):
        with pytest.raises(SystemExit):
            claims.main(wrong)


def test_each_study_has_claims() -> None:
    assert set(SHIPPED) == {path.stem for path in claims.STUDIES.glob("*.yaml")}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_guides_claim_is_cited_and_needs_a_gpu_if_it_is_about_one(name: str) -> None:
    copies = {path.name: path for path in (report.ROOT / "tests").glob("**/[1-5]-*.md")}
    for claim in claims.load_claims(SHIPPED[name]).claims:
        is_cleanup = claim.text.startswith("clean-up")
        is_gpu = claims.memory_of(claim.metric) == "GPU memory"
        assert claim.needs == "gpu" or not (is_cleanup or is_gpu), claim.text
        cited = re.fullmatch(r'(\d-[\w-]+\.md), (.+?): "(.+)"', claim.source)
        assert cited, f"{claim.text}: {claim.source!r} names no document, section and words"
        if copies:
            text = re.sub(r"[*`]", "", copies[cited[1]].read_text(encoding="utf-8"))
            assert cited[2] in text
            assert cited[3] in text
    if not copies:
        pytest.skip("the words were not compared: no copies of the guides in tests/")
