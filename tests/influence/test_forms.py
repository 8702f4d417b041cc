"""The form of score that `auto` chooses."""

import pytest

from clew.config.load import load
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence.link_prediction.traced_run import require_defined, with_chosen_form
from clew.link_prediction.task import LinkPrediction
from tests.oracles.test_influence_sum import random_graph


@pytest.mark.parametrize(
    ("preset", "settings", "expected"),
    [
        ("umls.yaml", {}, "kronecker"),
        ("umls_distmult.yaml", {}, "kronecker"),
        ("umls_transe.yaml", {}, "raw"),
        ("umls_complex.yaml", {"loss.regularizer": "n3"}, "cosine"),
        ("umls_complex.yaml", {"loss.relation_prediction_weight": 0.1}, "cosine"),
    ],
)
def test_auto_is_the_best_form_that_the_model_allows(preset, settings, expected):
    config = load(f"experiments/link_prediction/{preset}", settings)
    task = LinkPrediction(random_graph(), config)
    chosen = with_chosen_form(config.influence, task)
    assert (config.influence.score, chosen.score) == ("auto", expected)
    require_defined(chosen, task, config)
    if expected != "kronecker":
        with pytest.raises(ConfigError, match=r"influence\.score is kronecker"):
            require_defined(chosen.model_copy(update={"score": "kronecker"}), task, config)


def test_a_form_that_was_asked_for_is_kept():
    config = load("experiments/link_prediction/umls.yaml", {})
    task = LinkPrediction(random_graph(), config)
    asked = InfluenceConfig(score="raw")
    assert with_chosen_form(asked, task) is asked


def test_the_preconditioned_form_needs_the_moments_of_adam():
    config = load("experiments/link_prediction/umls.yaml", {"optimizer.kind": "sgd"})
    task, asked = LinkPrediction(random_graph(), config), InfluenceConfig(score="preconditioned")
    with pytest.raises(ConfigError, match=r"preconditioned.*\bsgd\b"):
        require_defined(asked, task, config)
