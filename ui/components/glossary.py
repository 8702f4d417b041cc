"""Every number in plain words: its name, unit and meaning, for headers and help texts."""

from dataclasses import dataclass

from clew import names
from clew.runs.hardware import SAMPLED_PREFIX as MACHINE
from clew.runs.hardware import SAMPLING_SECONDS
from clew.runs.influence_forms import CHECKPOINT_PREFIX, PART_PREFIX, Form

SPEARMAN = (
    "Rank correlation of the two explanations over the facts that both reports contain: 1 is the "
    "same order, 0 no relation, -1 the reverse."
)
OVERLAP = "Share of the most helpful facts that both explanations have in common."


@dataclass(frozen=True)
class Words:
    """The name of a metric, its unit and its meaning."""

    label: str
    help: str
    unit: str = ""

    @classmethod
    def of(cls, said: str) -> "Words":
        """Return the words that `Name [unit]: Meaning.` says."""
        name, _, meaning = said.partition(": ")
        label, _, unit = name.removesuffix("]").partition(" [")
        return cls(label, meaning, unit)


_ERROR = "Error of {0} %: {0} % of the windows have a smaller absolute error."
_BASELINE = "MAE of {0}: Mean absolute error of {0}: a simple prediction to compare with."
_QUALITY = {
    names.MRR: "MRR: Mean reciprocal rank: the mean of 1 divided by the rank of the right answer. "
    "1 is perfect. Other answers that are known to be true do not count against the model.",
    names.hits_at(1): "Hits@1: Share of questions whose right answer came first.",
    names.hits_at(3): "Hits@3: Share of questions with the right answer in the top 3.",
    names.hits_at(10): "Hits@10: Share of questions with the right answer in the top 10.",
    names.MEAN_RANK: "Mean rank: Average place of the right answer; 1 is perfect.",
    names.PERPLEXITY: "Perplexity: How many equally likely next tokens the model chooses between; "
    "lower is better.",
    names.BITS_PER_BYTE: "Bits per byte [bit]: Bits that the model needs per byte of text; lower "
    "is better.",
    names.MAE: "MAE: Mean absolute error, in the unit of what is predicted.",
    names.RMSE: "RMSE: Root mean squared error: large errors weigh more. Lower is better.",
    names.R2: "R²: Share of the variance that is explained; 1 is perfect.",
    names.LOSS: "Loss: What training minimizes.",
    names.NUM_LEAKED: "Leaked triples: Triples whose inverse, mirror or duplicate is a training "
    "fact: a look-up answers them.",
    names.BIAS: "Bias: Mean of prediction minus target; 0 is best.",
    names.INTERVAL_COVERAGE: "Coverage: Share of targets within the interval around their "
    "prediction.",
    names.INTERVAL_HALF_WIDTH: "Half width: How far the interval reaches to either side of a "
    "prediction.",
    **{names.ABS_ERROR_QUANTILE.format(k=k): _ERROR.format(k) for k in (50, 90, 95)},
    names.BASELINE_MAE.format(baseline="mean"): _BASELINE.format("the mean"),
    names.BASELINE_MAE.format(baseline="ridge"): _BASELINE.format("ridge regression"),
    names.BASELINE_MAE.format(baseline="persistence"): _BASELINE.format("the last value"),
    names.CLASSIFICATION.format(name="accuracy"): "Accuracy: Share of given triples, true and "
    "false, that are judged correctly.",
    names.CLASSIFICATION.format(name="f1"): "F1: Harmonic mean of precision and recall over given "
    "true and false triples.",
}

_LDS = (
    "Rank correlation of the predicted effect with the real effect of training without some of "
    "the facts; 1 is perfect, 0 is chance."
)
_METRICS = {
    names.TIME_EPOCH_SECONDS: "Time per epoch [s]: Seconds for one pass over the training data, "
    "without evaluation and compilation.",
    names.TIME_STEP_MILLISECONDS: "Time per step [ms]: Milliseconds per optimizer step.",
    names.TIME_DATA_MILLISECONDS: "Waiting for data [ms]: Part of a step's time that is spent "
    "waiting for a batch.",
    names.TIME_TOTAL_SECONDS: "Total time [s]: Seconds from start to end, evaluation included.",
    names.EXAMPLES_PER_SECOND: "Examples per second [1/s]: Training examples processed in a "
    "second; more is better.",
    names.TOKENS_PER_SECOND: "Tokens per second [1/s]: Tokens trained on in a second.",
    names.FRAMES_PER_SECOND: "Frames per second [1/s]: Frames trained on in a second.",
    names.GPU_PEAK_ALLOCATED_GIB: "Peak GPU memory [GiB]: The most GPU memory that tensors used "
    "at any time in training. Runs on a CPU have none.",
    names.GPU_PEAK_RESERVED_GIB: "Peak GPU memory, reserved [GiB]: The same, plus what the "
    "allocator reserved.",
    names.PROCESS_PEAK_GIB: "Peak process memory [GiB]: The most main memory that the training "
    "process used.",
    names.TRAIN_LOSS: "Training loss: What training minimizes, per example.",
    names.TRAIN_LEARNING_RATE: "Learning rate: Size of the optimizer's steps.",
    names.TRAIN_GRAD_NORM: "Gradient norm: Length of the gradient before clipping.",
    names.TRAIN_LOSS_SCALE: "Loss scale: Factor on the loss, so that float16 can represent its "
    "gradients.",
    names.TRAIN_SKIPPED_STEPS: "Skipped steps: Optimizer steps that were skipped because float16 "
    "overflowed.",
    names.TRAIN_EPOCH: "Epoch: Passes over the training data so far.",
    names.TIME_COMPILE_SECONDS: "Compiling [s]: Seconds that torch.compile took.",
    names.TIME_EVALUATION_SECONDS: "Evaluating [s]: Seconds that evaluation took.",
    names.MFU: "Use of the GPU: Share of the peak rate of the GPU's data sheet.",
    names.PROCESS_GROWTH_GIB: "Growth of the process [GiB]: The most main memory that the command "
    "used, beyond what its process had before.",
    names.PREDICTED_GIB: "Predicted peak [GiB]: Peak memory that the planner predicted before "
    "training.",
    names.INFLUENCE_SECONDS_PER_TEST: "Time per explanation [s]: Seconds that it took to explain "
    "one prediction.",
    names.INFLUENCE_PAIRS_PER_SECOND: "Pairs per second [1/s]: Pairs of a prediction and a "
    "training fact scored in a second.",
    names.INFLUENCE_HALF_PRECISION_ERROR: "Error of half precision: Largest difference from the "
    "scores in float32, as a share of the largest score.",
    names.INFLUENCE_HALF_PRECISION_SPEARMAN: "Order in half precision: Rank correlation with the "
    "scores in float32, over the 100 strongest facts; 1 is the same order.",
    names.INFLUENCE_LDS_SAME_SEED: f"Predicts retraining, same seed: {_LDS}",
    names.INFLUENCE_LDS_OTHER_SEEDS: f"Predicts retraining, other seeds: {_LDS}",
    names.INFLUENCE_LDS_SIBLINGS: "Counting siblings predicts retraining: The same correlation "
    "for a plain count: facts with the same relation and head, or tail.",
    names.INFLUENCE_LDS_CEILING: "Retraining predicts itself: The same correlation between "
    "retrainings with other random numbers: no explanation can be expected to reach more.",
    names.IMPORTANCE.partition("/")[0]: "Importance: Share of a setting in what made a search's "
    "trials good.",
    names.INFLUENCE_DELETION_DROP: "Fall without the strongest facts: How much the "
    "log-probability falls when the model is trained without them.",
    names.VALUE_SECONDS: "Time to value facts [s]: Seconds for all training facts.",
    names.VALUE_TOGETHER[0]: "Rise without the highest: How much the loss rises after training "
    "without the tried facts of the highest values, all together.",
    names.VALUE_TOGETHER[1]: "Rise without the lowest: How much the loss rises after training "
    "without the tried facts of the lowest values, all together; below 0 it falls.",
}

SIGNS = (
    "Positive (▲): it made the prediction more likely. Negative (▼): less likely. An estimate, not "
    "a probability."
)
COSINE = (
    "Influence divided by the lengths of both gradients in the form's geometry, no unit, from -1 "
    "to 1: examples with large gradients for every prediction no longer come first."
)
SCORE = "The model's own score for the triple (a logit, no unit): larger is more likely."
RANK = (
    "Place of the true answer (the tail, unless the explanation asks for the head or for both) "
    "among all entities, other answers known in any split left out; 1 means the model puts it "
    "first. Equal scores share their mean place."
)
COUNTERPART = "The fact is the triple's inverse or duplicate, in a relation that says the same."
SIBLINGS = (
    "Leave out facts that have the same relation and head, or the same relation and tail, as the "
    "test triple. They answer the same question, so their influence is often trivial."
)
FALL = (
    "Expected fall of the answer's log-probability if the model is trained without this fact: its "
    "score times {fall}, which a test found by deleting the strongest facts of other answers."
)
RUNS_AGREE = (
    "How many of the averaged runs agree on the sign; the runs differ only in their seed. If all "
    "agree, the sign is not the luck of one run; the other facts are grey."
)
SPREAD = "Standard deviation of the influence over the averaged runs, in its unit."
TEXT_LOSS = (
    "Loss of the continuation, summed over its tokens; 0 means certainty. Divided by the number "
    "of tokens and by 0.693 it is bits per token."
)
PLACE = (
    "Training windows are parts of the training text of equal length, numbered in order; tokens "
    "are counted from the start of the packed text."
)

RATIO = "ratio"
_MACHINE_UNITS = {"percentage": "%", "megabytes": "MB", "watts": "W"}
"""Endings of the keys of machine metrics, and the units that they mean."""

PARTS = {
    "entity_output": "answer's embedding",
    "entity_cross": "embedding as question and answer",
    "entity_input": "question's embedding",
    "relation": "relation's embedding",
    "dense": "dense layer",
    "convolution": "convolution",
}


def score(column: str, form: Form) -> Words:
    """Return the words for the scores of an explanation; `column` is `influence` or `cosine`."""
    if column == "cosine":
        return Words("Cosine", COSINE)
    meaning = form.meaning[:1].upper() + form.meaning[1:]
    return Words(form.heading, f"{meaning} {SIGNS}", form.unit)


def words(key: str) -> Words:
    """Return the words for a metric; a metric without a description keeps its key as name."""
    if key in _METRICS:
        return Words.of(_METRICS[key])
    if key.startswith(MACHINE):
        return _of_machine(key)
    split, _, name = key.rpartition("/")
    if split in _METRICS:  # of one form of score or setting: `influence/lds_same_seed/cosine`
        measure = Words.of(_METRICS[split])
        return Words(f"{measure.label}, {name}", measure.help, measure.unit)
    more = ""
    for side in ("head", "tail"):
        if name.endswith(f"_{side}"):
            name, more = name.removesuffix(f"_{side}"), f", asked for {side}s"
    if name.endswith(leaked := names.NOT_LEAKED.format(name="")):
        name, more = name.removesuffix(leaked), f"{more}, without leaked triples"
    if name.startswith(given := names.GIVEN.format(name="")):
        name, more = name.removeprefix(given), f"{more}, among given negatives"
    if name.startswith(seen := names.SEEN.format(name="")):
        name, more = name.removeprefix(seen), f"{more}, among entities seen with the relation"
    if split in {"valid", "test"} and (said := _QUALITY.get(name) or _loss_at(name)):
        found, data = Words.of(said), {"valid": "validation", "test": "test"}[split]
        return Words(f"{found.label}, {data}{more}", found.help, found.unit)
    owner, metric = whose(key)
    if not owner:
        return Words(key, f"The metric {key} as the run recorded it.")
    found = words(metric)
    label, about, unit = f"{owner}: {found.label}", found.help, found.unit
    if owner.startswith(f"{RATIO}/"):
        label = f"{owner.removeprefix(f'{RATIO}/')}: ratio of {found.label}"
        about, unit = f"{about} Here divided by the value of the study's reference.", ""
    return Words(label, about, unit)


def whose(key: str) -> tuple[str, str]:
    """Return the owner of a metric and the owner's key, such as `bf16` and `test/mrr`.

    Studies record metrics of their variants, and under `ratio/<variant>` their ratios to those of
    the reference. Promotions record those of the champion. For a metric of the run itself, the
    owner is empty.
    """
    owner, _, metric = key.partition("/")
    if owner == RATIO:
        variant, _, metric = metric.partition("/")
        owner = f"{RATIO}/{variant}"
    is_known = bool(metric) and words(metric).label != metric
    return (owner, metric) if is_known else ("", key)


def _of_machine(key: str) -> Words:
    name = key.removeprefix(MACHINE)
    start, _, end = name.rpartition("_")
    unit = _MACHINE_UNITS.get(end, "")
    said = (start if unit else name).replace("_", " ").replace("system memory", "main memory")
    said = said.replace("cpu", "CPU").replace("gpu", "GPU")
    about = f"Of the whole machine, sampled every {SAMPLING_SECONDS:.0f} s."
    return Words(f"{said[:1].upper()}{said[1:]}", about, unit)


def place_on_curve(key: str, kind: str = names.KIND_TRAIN) -> str:
    if kind == names.KIND_TUNE and not key.startswith(MACHINE):
        return "Trials done"
    return "Sample" if key.startswith(MACHINE) else "Optimizer step"


def _loss_at(name: str) -> str:
    """Return what the loss at a place in a window of text is, empty for other metrics."""
    before = names.LOSS_AT.format(k="")
    place = name.removeprefix(before)
    if not name.startswith(before) or not place.isdigit():
        return ""
    about = "Loss of the tokens at that place in a window, in nats: less after more text."
    return f"Loss from token {int(place)} on [nat]: {about}"


def label(key: str) -> str:
    found = words(key)
    return f"{found.label} [{found.unit}]" if found.unit else found.label


def part(column: str) -> str:
    """Return what a share of an influence is of: a part of the model, or a checkpoint."""
    if column.startswith(CHECKPOINT_PREFIX):
        return f"step {column.removeprefix(CHECKPOINT_PREFIX)}"
    name = column.removeprefix(PART_PREFIX)
    return PARTS.get(name, name.replace("_", " "))
