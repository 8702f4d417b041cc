"""A model's outcomes for test triples, against plain loops over entities."""

import numpy as np
import pytest
import torch

from clew.influence.outcomes import Examiner
from clew.link_prediction.task import LinkPrediction
from tests.validation.test_retraining import config_of, graph_of


@pytest.mark.parametrize("function", ["softmax_cross_entropy", "binary_cross_entropy"])
def test_outcomes_equal_a_plain_loop(function: str) -> None:
    graph, config = graph_of(), config_of("complex", loss__function=function)
    torch.manual_seed(0)
    model = LinkPrediction(graph, config).build_model().eval()
    found = Examiner(graph, config, graph.test).examine(model)
    known = {tuple(row) for row in np.concatenate([graph.train, graph.valid, graph.test]).tolist()}
    for place, (head, relation, tail) in enumerate(graph.test.tolist()):
        sides = (
            (head, relation, tail, lambda e, h=head, r=relation: (h, r, e)),
            (tail, relation + 3, head, lambda e, t=tail, r=relation: (e, r, t)),
        )
        for direction, (start, kind, answer, triple) in enumerate(sides):
            with torch.no_grad():
                query = model.queries(torch.tensor([start]), torch.tensor([kind]))[0]
                scores = (model.entity.weight @ query + model.entity_bias).double()
            log_probability = scores.log_softmax(0)[answer]
            assert found.log_probability[direction, place] == pytest.approx(float(log_probability))
            loss = -log_probability
            if function == "binary_cross_entropy":
                loss = torch.nn.functional.softplus(scores).sum() - scores[answer]
            assert found.loss[direction, place] == pytest.approx(float(loss), rel=1e-5)
            others = [e for e in range(12) if e != answer and triple(e) not in known]
            rank = 1 + sum(bool(scores[e] > scores[answer]) for e in others)
            assert found.rank[direction, place] == rank
    np.testing.assert_allclose(found.total_loss, found.loss[0] + found.loss[1])


def test_a_model_without_inverse_relations_answers_for_tails_alone() -> None:
    graph, config = graph_of(), config_of("complex", data__inverse_relations=False)
    model = LinkPrediction(graph, config).build_model().eval()
    assert Examiner(graph, config, graph.test).examine(model).rank.shape == (1, 8)
