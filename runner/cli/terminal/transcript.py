"""One rollout for a person, and as JSON: what each agent answered, what was delivered where, and how it ended."""

from __future__ import annotations

import json

from runner.base.text import comma_join, in_one_line
from runner.cli.terminal.output import columns_of_output, say
from runner.cli.terminal.wrapping import wrapped
from runner.game.protocols.protocol import Decision, label_word
from runner.game.protocols.rounds import Round
from runner.models.journal_records import FailureRecord
from runner.rollouts.rollout import RoundVerdict
from runner.rollouts.transcript import describe_confidence, describe_variant
from runner.runs.finished.rollout_details import RecordedAnswer, RolloutDetails, correct_word, verdict_word

COLOURS = ("36", "33", "35", "32", "34", "31")
"""Of the agents, in the protocol's order: the parameters of SGR."""

EMPTY = "(an empty message)"
LEFT_EMPTY = "(left empty: no answer could be used)"
NO_CONTENT = "(empty: the answer has no content)"
CUT = "(cut at the token limit)"
SHORT = 80
"""A column of the datapoint that is longer stands on lines of its own."""


def _said(verdict: RoundVerdict) -> str:
    """A verdict on the way, with how many votes were for it, and how sure it was."""
    share = f"{verdict.votes.count(verdict.decision)} of {len(verdict.votes)}" if verdict.votes else ""
    sure = describe_confidence(verdict.confidence_stated, verdict.confidence_logprob, verdict.confidence_note)
    more = "; ".join(words for words in (share, sure) if words)
    return f"round {verdict.round} {verdict_word(verdict.decision)}{f' ({more})' if more else ''}"


def print_transcript(told: RolloutDetails, only: int | None = None) -> None:
    """Print a rollout; `only`: this round alone."""
    _Printer(told, columns_of_output()).print(only)


class _Printer:
    """Prints one rollout at a width."""

    def __init__(self, told: RolloutDetails, width: int | None) -> None:
        self.told = told
        self.width = width
        names = told.protocol.agent_names
        self.colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}

    def print(self, only: int | None) -> None:
        rollout, job = self.told.rollout, self.told.rollout.job
        which = "  ".join([f"repeat {job.repeat}", *describe_variant(job)])
        say(f"rollout {job.rollout_id}  datapoint {in_one_line(job.datapoint.id)}  {which}")
        for name, value in job.datapoint.columns.items() if only is None else ():
            self._column(in_one_line(name), value if isinstance(value, str) else json.dumps(value, default=str))
        for number, played in self.told.rounds(only):
            for agent in self.told.speakers(number, played):
                self._turn(number, played, agent)
            self._counted(number, played)
        verdict, label = verdict_word(rollout.decision), label_word(job.datapoint.label)
        judged = correct_word(rollout.correct, rollout.decision)
        said = verdict if judged == "-" else f"{verdict} ({judged})"
        say(f"\noutcome: {rollout.outcome}, verdict: {said}, label: {label}")
        sure = describe_confidence(rollout.confidence_stated, rollout.confidence_logprob, rollout.confidence_note)
        if sure:
            self._lines(sure)
        if rollout.votes:
            self._lines(f"votes: {comma_join(map(verdict_word, rollout.votes))}")
        if rollout.verdicts:
            self._lines(f"verdicts: {comma_join(map(_said, rollout.verdicts))}")
        self._lines("rewards: " + comma_join(f"{agent} {reward:g}" for agent, reward in rollout.rewards.items()))
        if rollout.error:
            self._lines(f"error: {rollout.error}")

    def _column(self, name: str, text: str) -> None:
        if "\n" in text or len(text) > min(SHORT, self.width or SHORT) - len(name) - 2:
            say(f"\n{name}:")
            self._lines(text.rstrip("\n"), "  ")
        else:
            say(f"{name}: {text}")

    def _turn(self, number: int, played: Round | None, agent: str) -> None:
        """One agent's turn: each call that failed, each answer that could not be used, and what came of the last."""
        answers, colour = self.told.answers(number, agent), self.colours[agent]
        failures = self.told.failed(number, agent)
        for place, answer in enumerate(answers, 1):
            while failures and failures[0].sample.attempt <= answer.attempt:
                self._failed(failures.pop(0), number, agent)
            if answer.unusable_reason is not None:
                self._head(number, agent, f"answer {place} of {len(answers)} could not be used", colour)
                self._lines(f"why: {answer.unusable_reason}", "  ", f"2;{colour}")
                self._reasoning(answer, colour)
                if answer.text:
                    self._lines(answer.text, "  | ", f"2;{colour}")
                self._cut(answer, colour)
        for failure in failures:
            self._failed(failure, number, agent)
        usable = answers[-1] if answers and answers[-1].unusable_reason is None else None
        if played is not None and agent in played.raw:
            self._delivered(number, played, agent, usable)
        elif usable is not None:
            self._head(number, agent, "this round was cut off: delivered to no one", colour)
            text = usable.text or ""
            self._lines(text if text.strip() else NO_CONTENT, "  ", colour)
            self._cut(usable, colour)

    def _failed(self, failure: FailureRecord, number: int, agent: str) -> None:
        wait = f"{failure.wait:.{1 if failure.wait >= 1 else 3}f}"
        after = f"; asked again after {wait} s" if failure.wait >= 0 else "; not asked again"
        self._head(number, agent, "call failed", self.colours[agent])
        self._lines(f"{failure.error}{after}", "  ", f"2;{self.colours[agent]}")

    def _delivered(self, number: int, played: Round, agent: str, usable: RecordedAnswer | None) -> None:
        colour, raw = self.colours[agent], played.raw[agent]
        sent = [message for message in played.messages if message.agent == agent]
        if usable is not None:
            self._reasoning(usable, colour)
        if not sent:
            self._head(number, agent, f"decides: {verdict_word(played.decision)}", colour)
            self._lines(raw, "  ", colour)
            self._cut(usable, colour)
            return
        starts = [raw.find(message.text) for message in sent if message.text]
        unheard = raw[: min(starts)].strip() if len(sent) > 1 and starts and min(starts) > 0 else ""
        if unheard:
            self._head(number, agent, "before its first header: delivered to no one", colour)
            self._lines(unheard, "  | ", f"2;{colour}")
        for message in sent:
            hearers = comma_join(self.told.hearers(message.channel, agent)) or "nobody"
            self._head(number, agent, f"{message.channel}, to {hearers}", colour)
            text = message.text if message.text.strip() else self._why_empty(number, agent, raw, usable)
            self._lines(text, "  ", colour)
        self._cut(usable, colour)

    def _why_empty(self, number: int, agent: str, raw: str, usable: RecordedAnswer | None) -> str:
        """What stands for a message without text: one that nobody could write, or one that was sent so."""
        if usable is None and self.told.answers(number, agent):
            return LEFT_EMPTY
        return EMPTY if raw.strip() else NO_CONTENT

    def _cut(self, answer: RecordedAnswer | None, colour: str) -> None:
        if answer is not None and answer.is_cut:
            self._lines(CUT, "  ", f"2;{colour}")

    def _counted(self, number: int, played: Round | None) -> None:
        """A decision that no agent has made: the protocol's own."""
        if played is None or played.decision == Decision.NONE:
            return
        verifier = self.told.protocol.verifier_name
        if verifier not in played.raw or any(message.agent == verifier for message in played.messages):
            say(f"\n[round {number}] the protocol decides: {verdict_word(played.decision)}")

    def _reasoning(self, answer: RecordedAnswer, colour: str) -> None:
        if answer.reasoning:
            self._lines(f"({len(answer.reasoning)} characters of reasoning; --json has them)", "  ", f"2;{colour}")

    def _head(self, number: int, agent: str, what: str, colour: str) -> None:
        say()
        self._lines(f"[round {number}] {agent} ({what})", "", f"1;{colour}")

    def _lines(self, text: str, indent: str = "", style: str = "") -> None:
        for line in wrapped(text, self.width, indent):
            say(line, style)
