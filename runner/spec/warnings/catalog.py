"""Warnings on a sound spec, one line each. `check` shows them, and `run` before it begins; none stops a run.

A new warning is a function of a spec, in a list at the end: `WARNINGS`, or `CHECK_WARNINGS` if only `check` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date

from runner.base.text import comma_join
from runner.game.prompts.templates import LAST_ROUND, SUFFIX
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schedule import messages_without_influence, rounds_without_waste
from runner.models.retirements import retirement_warnings
from runner.models.settings import ModelSettings
from runner.spec.assembly import Spec
from runner.spec.checks.fixed_verdicts import fixed_verdicts
from runner.spec.checks.seeds import fixed_seeds
from runner.spec.paired_design import design_notes
from runner.spec.warnings.groups import group_notes
from runner.spec.warnings.measurable import few_groups, single_label, unused_columns
from runner.spec.warnings.servers import temperatures_out_of_range, unset_keys

MAX_ROUNDS_NAMED = 6
"""A warning names at most this many of the rounds that are wasted."""


def warnings_of(spec: Spec, *, today: date | None = None) -> list[str]:
    """Return all warnings on a spec, in the order of `WARNINGS`, then the warnings that depend on the date."""
    retired = retirement_warnings(asked_groups(spec), today)
    return [*(line for warning in WARNINGS for line in warning(spec)), *retired]


def asked_groups(spec: Spec) -> dict[str, ModelSettings]:
    """Return the model groups that a run of the spec asks: of a rejudged run, the judge's alone."""
    experiment, judge = spec.experiment, spec.protocol.verifier_name
    agents = {judge: experiment.agents[judge]} if experiment.rejudge is not None else experiment.agents
    return {agent.model: experiment.models[agent.model] for agent in agents.values()}


def check_warnings_of(spec: Spec) -> list[str]:
    """Return all warnings on a spec, also those that only `check` shows."""
    return [*warnings_of(spec), *(line for warning in CHECK_WARNINGS for line in warning(spec))]


def _fixed_seeds(spec: Spec) -> Iterator[str]:
    return fixed_seeds(spec.experiment)


def _silent_templates(spec: Spec) -> Iterator[str]:
    """The agents whose templates do not tell how their answers are read: by neither a variable nor the text itself."""
    judge = spec.protocol.verifier_name
    for agent in spec.protocol.agent_names if spec.rejudged is None else (judge,):
        names = [name for name in (agent, agent + LAST_ROUND) if name in spec.prompts.sources]
        used = {variable for name in names for variable in spec.prompts.variables[name]}
        text = "\n".join(spec.prompts.sources[name] for name in names)
        never = f"{' and '.join(name + SUFFIX for name in names)} never use{'s' if len(names) == 1 else ''}"
        asks = spec.rejudged is None  # who only judges speaks to no one
        if (
            asks
            and "headers" not in used
            and any(one.lower() not in text.lower() for one in _headers(spec.protocol, agent))
        ):
            yield f"{never} `headers`: {agent} is not told how to begin its part for each channel"
        silent = [f"`{name}`" for name, said in _decisions(spec, agent).items() if not (name in used or said in text)]
        if silent:
            yield f"{never} {' and '.join(silent)}: {agent} is not told the words of a decision"


def _decisions(spec: Spec, agent: str) -> dict[str, str]:
    """The texts by which an agent decides, by their variables."""
    format_ = spec.experiment.decision_format
    return {"accept": format_.accept, "reject": format_.reject} if agent == spec.protocol.verifier_name else {}


def _replaced_confidence(spec: Spec) -> Iterator[str]:
    """Examples whose last message is the true label alone, where the verifier is asked for its confidence, too."""
    tuned = spec.experiment.fine_tune
    verifier = spec.protocol.verifier_name
    if tuned is None or not tuned.replace_verifier_guess_with_true_label or not spec.experiment.verdict.states:
        return
    if tuned.agents is None or verifier in tuned.agents:
        yield (
            f"fine_tune.replace_verifier_guess_with_true_label: examples of {verifier} end with the label and without "
            "a confidence, since none was stated for it; what is trained on them will state none"
        )


def _fixed_verdicts(spec: Spec) -> Iterator[str]:
    """The reason why a run of the spec has no rank on any leaderboard."""
    group = spec.experiment.models[spec.experiment.agents[spec.protocol.verifier_name].model]
    why = fixed_verdicts(spec.protocol.parameters.force_guess, [(group.provider, group.model)])
    if why is not None:
        yield f"the run will have no rank on any leaderboard: {why}"


def _headers(protocol: Protocol, agent: str) -> set[str]:
    """The headers that an agent's answers need: those of channels that it speaks in at once."""
    rounds = (protocol.can_be_active(round_).get(agent, ()) for round_ in range(len(protocol.steps)))
    channels = {channel for spoken_in in rounds if len(spoken_in) > 1 for channel in spoken_in}
    return {header for channel, header in protocol.agent_spec(agent).headers.items() if channel in channels}


def _unheard_rounds(spec: Spec) -> Iterator[str]:
    """Rounds that are paid for and reach no decision."""
    protocol, fixed = spec.protocol, spec.protocol.file.fixed
    lost = messages_without_influence(protocol)
    if not lost or spec.rejudged is not None:  # nobody is asked there
        return
    agents = sorted({agent for agents in lost.values() for agent in agents})
    more = len(lost) - MAX_ROUNDS_NAMED
    rounds = comma_join(map(str, list(lost)[:MAX_ROUNDS_NAMED])) + (f" and {more} more" if more > 0 else "")
    better = [] if "max_message_rounds" in fixed else rounds_without_waste(protocol)
    hint = f"; set protocol.max_message_rounds={' or '.join(map(str, better))}" if better else ""
    wasted = f"round {rounds} is" if len(lost) == 1 else f"rounds {rounds} are"
    said = f"{' and '.join(agents)} {'says' if len(agents) == 1 else 'say'}"
    yield f"{wasted} paid for and wasted: no decision follows what {said} there{hint}"


def _skipped_elements(spec: Spec) -> Iterable[str]:
    return spec.dataset.notes


def _pairs_of_like(spec: Spec) -> Iterator[str]:
    """Blocks in which nothing differs between the plays."""
    return design_notes(spec.experiment, spec.protocol, spec.prompts)


def _inherited_templates(spec: Spec) -> Iterator[str]:
    """The judge's templates that are those of the run whose debates are judged; of the others, all must be."""
    judge = spec.protocol.verifier_name
    taken = [name + SUFFIX for name in spec.prompts.inherited if name.partition(".")[0] == judge]
    if taken and spec.rejudged is not None:
        are = "is" if len(taken) == 1 else "are"
        yield (
            f"{comma_join(taken)} {are} not in prompts {spec.experiment.prompts}, and {are} taken from "
            f"{spec.rejudged.run_id}"
        )


WARNINGS: tuple[Callable[[Spec], Iterable[str]], ...] = (
    _unheard_rounds, _silent_templates, _replaced_confidence, _fixed_seeds, _pairs_of_like, _skipped_elements,
    group_notes, _inherited_templates, _fixed_verdicts,
)  # fmt: skip

CHECK_WARNINGS: tuple[Callable[[Spec], Iterable[str]], ...] = (
    unset_keys, temperatures_out_of_range, single_label, few_groups, unused_columns,
)  # fmt: skip
