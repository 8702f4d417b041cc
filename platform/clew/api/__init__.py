"""The Python API: the commands as functions, for notebooks and programs.

Everything here is also an attribute of `clew`, such as `clew.train`. Runs are recorded in the same
tracking store as those of the command line. Each function raises the errors that its command prints
(`clew.errors`).
"""

from clew.api.explanations import Attribution, attribute, value_facts
from clew.api.models import LanguageModel, Model, SequenceModel, TripleModel, evaluate, load
from clew.api.training import Run, Search, plan, train, tune
from clew.workflows.evaluate import EvaluateResult as Evaluation
from clew.workflows.plan import MemoryPlan
