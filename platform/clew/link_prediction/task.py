"""Link prediction: a knowledge graph, a graph model, and a loss over all entities."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from clew import names
from clew.config.data import TripleData
from clew.config.graph_models import GRAPH_MODELS, GraphModelSettings
from clew.config.loss import EntityLoss, KvsAllLoss, OneVsAllLoss
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import ConfigError
from clew.layers.products import device_of
from clew.link_prediction.leakage import Leakage, find_leakage, is_leaked
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import (
    OneVsAll,
    one_vs_all_loss,
    one_vs_all_row_losses,
    targets_of,
)
from clew.link_prediction.losses.sampled import NegativeSampler, SampledScores, degree_weights
from clew.link_prediction.losses.sharded import sharded_loss
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel, Queries, build_graph_model
from clew.link_prediction.plausibility import Report, report
from clew.link_prediction.rank_metrics import RankingResult
from clew.link_prediction.ranking import RankingSettings, rank_triples
from clew.link_prediction.triple_batches import (
    GroupedExamples,
    KvsAllExamples,
    OneVsAllExamples,
    TripleBatch,
    WeightedBatch,
)
from clew.link_prediction.triples import FilterIndex, KnowledgeGraph
from clew.training.sharding import ShardedTable
from clew.training.task import ExampleValues, LossSum

Examples = OneVsAllExamples | KvsAllExamples


class LinkPrediction:
    """Predict the tail of (head, relation), and the head as the tail of the inverse relation.

    Without inverse relations the model has no query for heads. Heads are then ranked by encoding
    every entity as a head, for each relation, with as many forward passes as there are entities.
    """

    kind = TASK_KINDS["triples"].task

    def __init__(self, graph: KnowledgeGraph, config: RunConfig) -> None:
        data, model, loss = config.data, config.model, config.loss
        if not (
            isinstance(data, TripleData)
            and isinstance(model, GraphModelSettings)
            and isinstance(loss, OneVsAllLoss | KvsAllLoss)
        ):
            raise ConfigError(
                f"link prediction needs data.kind=triples, model.kind {' or '.join(GRAPH_MODELS)} "
                f"and loss.kind one_vs_all or kvs_all; {data.kind}, {model.kind} and {loss.kind} "
                "given"
            )
        self.graph = graph
        self.model_config = model
        self.dataset = graph.name
        self.data_fingerprint = graph.fingerprint
        self.inverse_relations = data.inverse_relations
        self._examples = _examples_of(graph, loss, inverse_relations=self.inverse_relations)
        self._known: dict[str, FilterIndex] = {}
        self._ranking = RankingSettings(
            config.evaluation.batch_size, int(config.evaluation.chunk_mib * 1024**2)
        )
        self._loss = OneVsAll(
            function=loss.function,
            label_smoothing=loss.label_smoothing,
            implementation=loss.implementation,
            chunk_bytes=int(loss.chunk_mib * 1024**2),
            most_per_row=loss.triples_per_row if isinstance(loss, OneVsAllLoss) else 1,
        )
        self.terms = TripleTerms.from_config(loss)
        self.sampler = _sampler_of(graph, loss, config.training.seed)
        self._updates_rows = config.updates_rows
        self._batch_size = config.training.batch_size
        on_gpu = config.training.device != "cpu" and torch.cuda.is_available()
        self._device_type = "cuda" if on_gpu else "cpu"
        self._results: dict[str, RankingResult] = {}

    def describe(self) -> dict[str, str]:
        """Return the automatic choices: the implementation of the loss."""
        sizes = self._batch_size, self.graph.num_entities
        chosen = self._loss.chosen(*sizes, self._device_type)
        return {names.TAG_LOSS_IMPLEMENTATION: "sampled" if self.sampler else chosen}

    @property
    def num_model_relations(self) -> int:
        return self.graph.num_relations * (2 if self.inverse_relations else 1)

    def build_model(self) -> GraphModel:
        """Build the model with new initial weights, on the CPU."""
        model = build_graph_model(
            self.model_config, self.graph.num_entities, self.num_model_relations
        )
        if self._updates_rows:
            model.use_row_gradients()
        return model

    def train_examples(self) -> Examples:
        return self._examples

    def loss(self, model: nn.Module, batch: TripleBatch) -> LossSum:
        """Return the loss summed over rows, with the divisor of the batch as `count`."""
        graph_model = _as_graph_model(model)
        relations = graph_model.relation(batch.relation)
        if isinstance(batch, WeightedBatch):
            queries = graph_model(graph_model.head_table(batch.head), relations)
            losses = self.query_losses(graph_model, queries, batch)
            return LossSum((losses * batch.weight.to(losses)).sum(), batch.count)
        if self.terms is None:
            queries = graph_model(graph_model.head_table(batch.head), relations)
            return LossSum(self._prediction_loss(graph_model, queries, batch), batch.count)
        heads, tails = graph_model.look_up(batch.head, batch.entity)
        total = self._prediction_loss(graph_model, graph_model(heads, relations), batch)
        rows = heads[batch.row], relations[batch.row], tails
        total = total + self.terms.losses(graph_model, *rows, batch.relation[batch.row]).sum()
        return LossSum(total, batch.count)

    def example_losses(self, model: nn.Module, batch: TripleBatch) -> Tensor:
        """Return the loss of each row, `(batch,)`."""
        graph_model = _as_graph_model(model)
        queries = graph_model.queries(batch.head, batch.relation)
        losses = self.query_losses(graph_model, queries, batch)
        return losses * batch.weight.to(losses) if isinstance(batch, WeightedBatch) else losses

    def query_losses(self, model: GraphModel, queries: Queries, batch: TripleBatch) -> Tensor:
        """Return the loss of each row from its query vector, `(batch,)`."""
        losses = self._prediction_losses(model, queries, batch)
        if self.terms is None:
            return losses
        return losses.index_add(0, batch.row, self._triple_losses(self.terms, model, batch))

    def prediction_losses(self, model: nn.Module, batch: TripleBatch) -> Tensor:
        """Return the loss of each row without regularizer and relation prediction, `(batch,)`."""
        graph_model = _as_graph_model(model)
        return self._prediction_losses(
            graph_model, graph_model.queries(batch.head, batch.relation), batch
        )

    def _prediction_losses(self, model: GraphModel, queries: Queries, batch: TripleBatch) -> Tensor:
        if self.sampler is None:
            return self._over_all(one_vs_all_row_losses, model, queries, batch)
        targets = targets_of(queries, model.entity.weight, batch.row, batch.entity, self._loss)
        drawn = self.sampler.draw(batch.example)
        scores = SampledScores(queries, model.query_bias(queries), targets, drawn, model.tails)
        return scores.losses(self._loss.function)

    @staticmethod
    def _triple_losses(terms: TripleTerms, model: GraphModel, batch: TripleBatch) -> Tensor:
        """Return what the terms add for each positive, `(positive,)`.

        Each positive has its own lookup, because influence needs one use of the tables for each.
        """
        head, relation = batch.head[batch.row], batch.relation[batch.row]
        rows = model.head_table(head), model.relation(relation), model.entity(batch.entity)
        return terms.losses(model, *rows, relation)

    def _prediction_loss(self, model: GraphModel, queries: Queries, batch: TripleBatch) -> Tensor:
        table = model.entity
        if isinstance(table, ShardedTable):
            return sharded_loss(model, queries, batch, settings=self._loss, sampler=self.sampler)
        if self.sampler is not None:
            return self._prediction_losses(model, queries, batch).sum()
        device_type = device_of(queries).type
        plain = self._loss.chosen(len(queries), len(table.weight), device_type) == "plain"
        loss = one_vs_all_loss if plain else fused_one_vs_all_loss
        return self._over_all(loss, model, queries, batch)

    def _over_all(
        self, loss: Callable[..., Tensor], model: GraphModel, queries: Queries, batch: TripleBatch
    ) -> Tensor:
        return loss(
            queries,
            model.entity.weight,
            model.tail_bias(),
            batch.row,
            batch.entity,
            settings=self._loss,
            query_bias=model.query_bias(queries),
        )

    def has_examples(self, split: str) -> bool:
        return len(self.graph.split(split)) > 0

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        if not self.has_examples(split):
            return {}
        result = self.rank(model, split)
        return result.metrics(split) | self._not_leaked(result, split)

    def _not_leaked(self, result: RankingResult, split: str) -> dict[str, float]:
        """Return the test metrics without the triples whose inverse or duplicate is in training."""
        if split != "test":
            return {}
        leaked = is_leaked(self.graph, self.graph.test, self.leakage.pairs)
        values = {names.metric(split, names.NUM_LEAKED): float(leaked.sum())}
        if leaked.any() and not leaked.all():
            rest = result.only(~leaked).quality()
            values |= {
                names.metric(split, names.NOT_LEAKED.format(name=n)): v for n, v in rest.items()
            }
        return values

    @cached_property
    def leakage(self) -> Leakage:
        return find_leakage(self.graph)

    @cached_property
    def data_report(self) -> Report:
        return report(self.graph, leakage=self.leakage)

    def rank(self, model: nn.Module, split: str) -> RankingResult:
        """Rank the heads and tails of a split's triples among all entities."""
        triples = self.graph.split(split)
        if split not in self._known:
            self._known[split] = FilterIndex.of_questions(self.graph, triples)
        result = rank_triples(
            _as_graph_model(model), triples, self._known[split], settings=self._ranking
        )
        self._results[split] = result
        return result

    def example_values(
        self, model: nn.Module, split: str, name: str, device: torch.device
    ) -> ExampleValues | None:
        values = self._results[split].by_triple(name)
        return None if values is None else ExampleValues(values, "triples")

    def write_artifacts(self, folder: Path) -> None:
        """Write `vocabulary/`: ids, names and labels of entities and relations."""
        target = folder / "vocabulary"
        target.mkdir(parents=True, exist_ok=True)
        self.graph.entities.write(target / "entities.parquet")
        self.graph.relations.write(target / "relations.parquet")
        self.data_report.write(folder / names.ARTIFACT_DATA_REPORT)

    def write_report(self, split: str, folder: Path) -> None:
        """Write the ranks by relation and side of the last evaluation of a split, as Parquet."""
        if split not in self._results:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._results[split].write_by_relation(
            folder / f"{split}_by_relation.parquet", self.graph.relations
        )


def _examples_of(
    graph: KnowledgeGraph, loss: OneVsAllLoss | KvsAllLoss, *, inverse_relations: bool
) -> Examples:
    triples, num_relations = graph.train, graph.num_relations
    is_grouped = isinstance(loss, KvsAllLoss) or loss.triples_per_row > 1
    if graph.weights is not None and is_grouped:
        raise ConfigError(
            "data.weights=use needs a loss with one fact in each row; give loss.kind=one_vs_all "
            "and loss.triples_per_row=1"
        )
    if isinstance(loss, KvsAllLoss):
        return KvsAllExamples(triples, num_relations, inverse_relations=inverse_relations)
    if loss.triples_per_row == 1:
        return OneVsAllExamples(
            triples, num_relations, inverse_relations=inverse_relations, weights=graph.weights
        )
    return GroupedExamples(
        triples, num_relations, inverse_relations=inverse_relations, size=loss.triples_per_row
    )


def _sampler_of(graph: KnowledgeGraph, loss: EntityLoss, seed: int) -> NegativeSampler | None:
    """Return the sampler of entities for a batch; None if the loss is over all entities."""
    if loss.negatives is None:
        return None
    weights = None
    if loss.negative_sampling == "degree":
        weights = degree_weights(graph.train, graph.num_entities, graph.weights)
    return NegativeSampler(graph.num_entities, loss.negatives, seed=seed, weights=weights)


def _as_graph_model(model: nn.Module) -> GraphModel:
    if not isinstance(model, GraphModel):
        raise TypeError(f"link prediction trains a GraphModel, {type(model).__name__} given")
    return model
