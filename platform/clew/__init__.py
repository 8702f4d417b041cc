"""Clew trains models with measured optimizations and traces predictions to training examples.

    import clew

    run = clew.train("umls", epochs=20)
    model = run.load()
    model.predict(head="virus", relation="causes")
    clew.attribute(model, [("virus", "causes", "pathologic_function")]).proponents

`import clew` takes milliseconds: torch, MLflow and pandas are imported when one of these functions
is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.api.explanations import Attribution, attribute, value_facts
    from clew.api.models import LanguageModel, Model, SequenceModel, TripleModel, evaluate, load
    from clew.api.training import Run, Search, plan, train, tune
    from clew.workflows.evaluate import EvaluateResult as Evaluation
    from clew.workflows.plan import MemoryPlan

__version__ = "0.1.0"
__all__ = [
    "Attribution",
    "Evaluation",
    "LanguageModel",
    "MemoryPlan",
    "Model",
    "Run",
    "Search",
    "SequenceModel",
    "TripleModel",
    "attribute",
    "evaluate",
    "load",
    "plan",
    "train",
    "tune",
    "value_facts",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("clew.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
