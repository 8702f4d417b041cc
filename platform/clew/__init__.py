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
    from clew.api import Attribution as Attribution
    from clew.api import Evaluation as Evaluation
    from clew.api import LanguageModel as LanguageModel
    from clew.api import MemoryPlan as MemoryPlan
    from clew.api import Model as Model
    from clew.api import Run as Run
    from clew.api import Search as Search
    from clew.api import SequenceModel as SequenceModel
    from clew.api import TripleModel as TripleModel
    from clew.api import attribute as attribute
    from clew.api import evaluate as evaluate
    from clew.api import load as load
    from clew.api import plan as plan
    from clew.api import train as train
    from clew.api import tune as tune
    from clew.api import value_facts as value_facts

__version__ = "0.1.0"

_PUBLIC = (
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
)


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("clew.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
