"""The tables of `nip-run validate`, and their content as JSON."""

from __future__ import annotations

import shlex
from typing import Any

from runner.analysis.results import AnalysisTable
from runner.analysis.validation import NO_ANSWER, Validation
from runner.base.text import comma_join, counted, with_interval
from runner.cli.terminal.output import note, print_heading, print_table, say, say_wrapped
from runner.statistics.clustered_means import Quantity
from runner.statistics.prediction_powered import FEWEST_LABELS, JudgeAccuracy, labels_needed

MAX_DISAGREEMENTS = 5
"""The number of disagreements that the text output lists."""
GUESSED_RATE, GUESSED_AGREEMENT = 0.5, 0.8
"""The rate, and the share of equal answers of the model and people, that `--labels-needed` assumes without labels."""
RECALLS = {"yes": "sensitivity", "no": "specificity"}
"""The usual name of the share of units with an answer that the model finds; of other answers: recall."""
USELESS = (
    "The model is not shown to agree with people more than by chance, because kappa's interval is not above 0: do not "
    "use its answers. Change the question or the model, or label more units."
)


RANDOM_SAMPLE = (
    "{units} of the labeled units were not drawn by nip-run label; the numbers below assume that they are a random "
    "sample of the run's units."
)


def describe_table(table: AnalysisTable) -> str:
    """Return the analyzer, models, instrument and run of results."""
    models = sorted({result.model for result in table.results if result.status != "not_applicable"})
    return f"{table.analyzer} by {comma_join(models)} (instrument {table.instrument}) on run {table.run_id}"


def describe_quantity(quantity: Quantity) -> str:
    """Return a number with its interval, or with the reason why there is none."""
    text = with_interval(quantity.value, *(quantity.interval or (None, None)))
    return text if quantity.reason is None else f"{text} ({quantity.reason})"


def print_validation(validation: Validation, analyzer: str, width: float | None) -> None:
    """Print a validation. `analyzer` is its name on the command line; `width` is that of `--labels-needed`."""
    print_heading(describe_table(validation.table))
    say(f"{counted(validation.units, 'unit')}, {validation.unanswered} without an answer of the model")
    if not validation.labels.readers:
        command = shlex.join(["nip-run", "label", validation.table.run_id, analyzer])
        say_wrapped(f"not validated: no unit of this run has a label. Label some: {command}")
    else:
        _print_labels(validation, analyzer)
        _print_agreement(validation)
        _print_disagreements(validation)
    _print_rates(validation)
    if width is not None:
        for name in validation.rates:
            say_wrapped(_describe_labels_needed(validation, name, width))


def _print_labels(validation: Validation, analyzer: str) -> None:
    labels = validation.labels
    names = comma_join(labels.readers)
    say(f"{counted(labels.units, 'unit')} labeled by {counted(len(labels.readers), 'reader')}: {names}")
    if len(labels.readers) > 1:
        ties = counted(len(labels.ties), "unit")
        say_wrapped(f"all readers of a unit count equally; {ties} without a majority left out of the table of answers")
    if validation.unknown_units:
        say(f"{counted(validation.unknown_units, 'labeled unit')} left out, because the analysis lacks them")
    if validation.undrawn_units:
        say_wrapped(RANDOM_SAMPLE.format(units=validation.undrawn_units))
    if not validation.is_validated:
        say_wrapped(f"not validated: {validation.raw.reason}")
        if validation.undrawn_units:
            words = ["nip-run", "label", validation.table.run_id, analyzer, "--units", "100", "--export", "sample.csv"]
            say_wrapped(f"To draw a random sample: {shlex.join(words)}")
    elif validation.kappa.reason is not None:
        say_wrapped(f"no interval of kappa: {validation.kappa.reason}")
    elif validation.is_useless:
        say_wrapped(USELESS)


def _print_agreement(validation: Validation) -> None:
    rows = [
        ("equal answers of model and people", validation.raw), ("Cohen's kappa", validation.kappa),
        ("Krippendorff's alpha", validation.alpha),
    ]  # fmt: skip
    for each in validation.answers:
        rows += [(f"base rate of {each.answer} (people)", each.base_rate)]
        rows += [(f"{RECALLS.get(each.answer, 'recall')} ({each.answer})", each.recall)]
    few = []
    for agreement in validation.reader_agreements:
        pair = " and ".join(agreement.readers)
        if agreement.raw.n < FEWEST_LABELS:
            few.append(f"{pair} both labeled {counted(agreement.raw.n, 'unit')}")
            continue
        rows += [(f"ceiling: equal answers of {pair}", agreement.raw), (f"ceiling: kappa of {pair}", agreement.kappa)]
    if validation.reader_alpha is not None and validation.reader_alpha.n >= FEWEST_LABELS:
        rows.append(("ceiling: alpha of all readers", validation.reader_alpha))
    cells = [(name, _number(quantity), quantity.n, quantity.clusters) for name, quantity in rows]
    print_table(("agreement", "value [95%]", "units", "groups"), cells)
    if few:
        say_wrapped(f"{'; '.join(few)}: the agreement of two readers needs at least {FEWEST_LABELS}")


def _print_disagreements(validation: Validation) -> None:
    cells = validation.confusion
    model_answers = sorted({model for _, model in cells}, key=lambda answer: (answer == NO_ANSWER, answer))
    rows = [
        [people, *(len(cells.get((people, model), ())) for model in model_answers)]
        for people in dict.fromkeys(people for people, _ in cells)
    ]
    print_table(("people", *(f"model: {answer}" for answer in model_answers)), rows, title="labeled units")
    rollouts = {result.unit_id: result.rollout_id for result in validation.table.results}
    disagreements = validation.disagreements
    for unit_id, people, model in disagreements[:MAX_DISAGREEMENTS]:
        command = shlex.join(["nip-run", "show", validation.table.run_id, rollouts[unit_id]])
        say(f"people: {people}, model: {model}: {command}   (unit {unit_id})")
    if len(disagreements) > MAX_DISAGREEMENTS:
        note(f"{len(disagreements) - MAX_DISAGREEMENTS} more disagreements: --json has all")


def _print_rates(validation: Validation) -> None:
    rows = [
        (name, with_interval(rate.plain.value, None, None), _number(rate.corrected), _number(rate.labels_alone))
        for name, rate in validation.rates.items()
    ]
    print_table(("rate of", "uncorrected", "corrected [95%]", "labels alone [95%]"), rows)
    for reason in dict.fromkeys(rate.corrected.reason for rate in validation.rates.values() if rate.corrected.reason):
        if reason != validation.raw.reason:
            say_wrapped(f"no corrected rate: {reason}")


def _number(quantity: Quantity) -> str:
    return with_interval(quantity.value, *(quantity.interval or (None, None)))


def _labels_needed(validation: Validation, name: str, width: float) -> tuple[int | None, bool]:
    """Return the number of labels for a width, None if all units are too few; and whether the accuracy is a guess."""
    rate, accuracy = validation.rates[name], validation.accuracies.get(name)
    guess = JudgeAccuracy.from_guess(GUESSED_RATE, GUESSED_AGREEMENT, rate.plain.n, rate.plain.clusters)
    return labels_needed(width / rate.scale, accuracy or guess), accuracy is None


def _describe_labels_needed(validation: Validation, name: str, width: float) -> str:
    count, is_guess = _labels_needed(validation, name, width)
    guess = f", if the model agrees with people about {GUESSED_AGREEMENT:.0%} of units" if is_guess else ""
    if count is None:
        return f"{name}: labels of all {validation.units} units give a wider interval than {width:g}{guess}"
    return f"{name}: an interval of width {width:g} needs about {counted(count, 'labeled unit')}{guess}"


# JSON


def to_json(validation: Validation, width: float | None) -> dict[str, Any]:
    """Return a validation as JSON. `width` is that of `--labels-needed`."""
    table, labels, alpha = validation.table, validation.labels, validation.reader_alpha
    rates = {
        name: {
            "uncorrected": rate.plain.value,
            "corrected": rate.corrected.to_json(),
            "labels_alone": rate.labels_alone.to_json(),
            "tuning": rate.tuning,
            "labels_needed": None if width is None else _labels_needed(validation, name, width)[0],
        }
        for name, rate in validation.rates.items()
    }
    return {
        "run_id": table.run_id,
        "instrument": table.instrument,
        "validated": validation.is_validated,
        "useless": validation.is_useless,
        "units": validation.units,
        "unanswered": validation.unanswered,
        "labeled_units": labels.units,
        "ties": labels.ties,
        "unknown_units": validation.unknown_units,
        "undrawn_units": validation.undrawn_units,
        "readers": {name: len(answers) for name, answers in labels.readers.items()},
        "raw": validation.raw.to_json(),
        "kappa": validation.kappa.to_json(),
        "alpha": validation.alpha.to_json(),
        "answers": {
            each.answer: {"base_rate": each.base_rate.to_json(), "recall": each.recall.to_json()}
            for each in validation.answers
        },
        "reader_agreements": [
            {"readers": each.readers, "raw": each.raw.to_json(), "kappa": each.kappa.to_json()}
            for each in validation.reader_agreements
        ],
        "reader_alpha": None if alpha is None else alpha.to_json(),
        "confusion": [
            {"people": people, "model": model, "units": units}
            for (people, model), units in validation.confusion.items()
        ],
        "rates": rates,
    }
