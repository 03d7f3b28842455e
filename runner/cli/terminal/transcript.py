"""Print one rollout for `nip-run show`: the answers of each agent, the delivered messages, and the outcome."""

from __future__ import annotations

import json

from runner.base.text import comma_join, in_one_line
from runner.cli.terminal.output import say, wrap_width
from runner.cli.terminal.wrapping import wrap_lines
from runner.game.protocols.protocol import Decision, correct_word, label_player, label_word, verdict_word
from runner.game.protocols.rounds import Round
from runner.game.protocols.speeches import private_notes
from runner.models.journal_records import FailureRecord
from runner.rollouts.rollout import RoundVerdict
from runner.rollouts.transcript import (
    describe_confidence,
    describe_statements,
    describe_variant,
    shown_columns,
    shown_label,
    shown_stances,
)
from runner.runs.finished.rollout_details import RecordedAnswer, RolloutDetails

AGENT_COLORS = ("36", "33", "35", "32", "34", "31")
"""ANSI codes of the agents' colors, in the protocol's order."""

EMPTY = "(an empty message)"
LEFT_EMPTY = "(left empty: no answer could be used)"
NO_CONTENT = "(empty: the answer has no content)"
TRUNCATED = "(cut at the token limit)"
MAX_INLINE_COLUMN = 80
"""Maximum width of a datapoint's column that is printed next to its name; a longer one is printed below the name."""


def _format_verdict(verdict: RoundVerdict) -> str:
    """Format the verdict of one round with its share of votes and its confidence."""
    share = f"{verdict.votes.count(verdict.decision)} of {len(verdict.votes)}" if verdict.votes else ""
    confidence = describe_confidence(verdict.confidence_stated, verdict.confidence_logprob, verdict.confidence_note)
    remarks = "; ".join(text for text in (share, confidence) if text)
    return f"round {verdict.round} {verdict_word(verdict.decision)}{f' ({remarks})' if remarks else ''}"


def print_transcript(details: RolloutDetails, round_number: int | None = None) -> None:
    """Print a rollout, or only one of its rounds."""
    _TranscriptPrinter(details, wrap_width()).print(round_number)


class _TranscriptPrinter:
    """Prints one rollout at a given width."""

    def __init__(self, details: RolloutDetails, width: int | None) -> None:
        self.details = details
        self.width = width
        names = details.protocol.agent_names
        self.colors = {name: AGENT_COLORS[index % len(AGENT_COLORS)] for index, name in enumerate(names)}
        self.stances = shown_stances(details.protocol, details.rollout)

    def print(self, round_number: int | None) -> None:
        rollout, job = self.details.rollout, self.details.rollout.job
        variant = "  ".join([f"repeat {job.repeat}", *describe_variant(job)])
        say(f"rollout {job.rollout_id}  datapoint {in_one_line(job.datapoint.id)}  {variant}")
        protocol = self.details.protocol
        players = (
            label_player(name, self.stances.get(name), protocol.chat_name(name)) for name in protocol.agent_names
        )
        self._print_lines(f"players: {comma_join(players)}")
        for name, value in shown_columns(rollout).items() if round_number is None else ():
            self._print_column(in_one_line(name), value if isinstance(value, str) else json.dumps(value, default=str))
        for number, played in self.details.rounds(round_number):
            for agent in self.details.speakers(number, played):
                self._print_turn(number, played, agent)
            for line in describe_statements(protocol, rollout.rounds, number) if played is not None else ():
                say()
                self._print_lines(f"[round {number}] {line}")
            self._print_protocol_decision(number, played)
        self._print_outcome()

    def _print_outcome(self) -> None:
        """Print how the game ended: its outcome, verdict, confidence, votes, rewards and error."""
        rollout = self.details.rollout
        verdict, label = verdict_word(rollout.decision), label_word(shown_label(rollout))
        correctness = correct_word(rollout.correct, rollout.decision)
        verdict_text = verdict if correctness == "-" else f"{verdict} ({correctness})"
        say(f"\noutcome: {rollout.outcome}, verdict: {verdict_text}, label: {label}")
        if rollout.answers is not None and rollout.answers.chosen_text is not None:
            self._print_lines(f"answer: {in_one_line(rollout.answers.chosen_text)}")
        confidence = describe_confidence(rollout.confidence_stated, rollout.confidence_logprob, rollout.confidence_note)
        if confidence:
            self._print_lines(confidence)
        if rollout.answers is not None and (numbers := rollout.answers.describe_numbers()):
            self._print_lines(numbers)
        if rollout.votes:
            self._print_lines(f"votes: {comma_join(map(verdict_word, rollout.votes))}")
        if rollout.verdicts:
            self._print_lines(f"verdicts: {comma_join(map(_format_verdict, rollout.verdicts))}")
        self._print_lines("rewards: " + comma_join(f"{agent} {reward:g}" for agent, reward in rollout.rewards.items()))
        if rollout.error:
            self._print_lines(f"error: {rollout.error}")

    def _print_column(self, name: str, text: str) -> None:
        if "\n" in text or len(text) > min(MAX_INLINE_COLUMN, self.width or MAX_INLINE_COLUMN) - len(name) - 2:
            say(f"\n{name}:")
            self._print_lines(text.rstrip("\n"), "  ")
        else:
            say(f"{name}: {text}")

    def _print_turn(self, number: int, played: Round | None, agent: str) -> None:
        """Print one agent's turn: failed calls, unusable answers, and the delivered messages."""
        answers, color = self.details.answers(number, agent), self.colors[agent]
        failures = self.details.failed_calls(number, agent)
        for answer_number, answer in enumerate(answers, 1):
            while failures and failures[0].sample.attempt <= answer.attempt:
                self._print_failed_call(failures.pop(0), number, agent)
            if answer.unusable_reason is not None:
                self._print_answer_heading(
                    number, agent, f"answer {answer_number} of {len(answers)} could not be used", color
                )
                self._print_lines(f"why: {answer.unusable_reason}", "  ", f"2;{color}")
                self._print_reasoning_size(answer, color)
                if answer.text:
                    self._print_lines(answer.text, "  | ", f"2;{color}")
                self._print_truncation(answer, color)
        for failure in failures:
            self._print_failed_call(failure, number, agent)
        usable = answers[-1] if answers and answers[-1].unusable_reason is None else None
        if played is not None and agent in played.raw:
            self._print_delivered(number, played, agent, usable)
        elif usable is not None:
            self._print_answer_heading(number, agent, "this round was cut off: delivered to no one", color)
            text = usable.text or ""
            self._print_lines(text if text.strip() else NO_CONTENT, "  ", color)
            self._print_truncation(usable, color)

    def _print_failed_call(self, failure: FailureRecord, number: int, agent: str) -> None:
        wait = f"{failure.wait:.{1 if failure.wait >= 1 else 3}f}"
        next_step = f"; retried after {wait} s" if failure.wait >= 0 else "; not retried"
        self._print_answer_heading(number, agent, "call failed", self.colors[agent])
        self._print_lines(f"{failure.error}{next_step}", "  ", f"2;{self.colors[agent]}")

    def _print_delivered(self, number: int, played: Round, agent: str, usable: RecordedAnswer | None) -> None:
        """Print the messages or the decision that an agent's answer `usable` was parsed into."""
        color, raw = self.colors[agent], played.raw[agent]
        messages = [message for message in played.messages if message.agent == agent]
        if usable is not None:
            self._print_reasoning_size(usable, color)
        if not messages:
            ignored = "; verdict ignored: too early" if self.details.ignores_verdict(number) else ""
            self._print_answer_heading(number, agent, f"decides: {verdict_word(played.decision)}{ignored}", color)
            self._print_lines(raw, "  ", color)
            self._print_truncation(usable, color)
            return
        # An answer with messages for several channels has a header before each; text before the first has no channel.
        starts = [raw.find(message.text) for message in messages if message.text]
        undelivered = raw[: min(starts)].strip() if len(messages) > 1 and starts and min(starts) > 0 else ""
        if undelivered:
            self._print_answer_heading(number, agent, "before its first header: delivered to no one", color)
            self._print_lines(undelivered, "  | ", f"2;{color}")
        notes = private_notes(raw, self.details.protocol.agent_spec(agent).scratchpad)
        if notes:
            self._print_answer_heading(number, agent, "private notes: delivered to no one", color)
            self._print_lines(notes, "  | ", f"2;{color}")
        candidate = self._describe_candidate(number, played, agent)
        for message in messages:
            listeners = comma_join(self.details.listeners(message.channel, agent)) or "nobody"
            self._print_answer_heading(number, agent, f"{message.channel}, to {listeners}{candidate}", color)
            text = message.text if message.text.strip() else self._placeholder_for_empty(number, agent, raw, usable)
            self._print_lines(text, "  ", color)
        self._print_truncation(usable, color)

    def _describe_candidate(self, number: int, played: Round, agent: str) -> str:
        """Return words for an answer that was selected from several candidates; empty for any other."""
        selection, best_of = played.selections.get(agent), self.details.protocol.step(number).best_of
        if selection is None or best_of is None:
            return ""
        if selection.failed:
            return f"; candidate 1 of {best_of.n}, because no judgment by {best_of.by} was usable"
        score = selection.scores[selection.index] if selection.scores else None
        score_text = "" if score is None else f", score {score:.3g}"
        return f"; candidate {selection.index + 1} of {best_of.n} by {best_of.by}{score_text}"

    def _placeholder_for_empty(self, number: int, agent: str, raw: str, usable: RecordedAnswer | None) -> str:
        """Return a text that says why a message is empty."""
        if usable is None and self.details.answers(number, agent):
            return LEFT_EMPTY
        return EMPTY if raw.strip() else NO_CONTENT

    def _print_truncation(self, answer: RecordedAnswer | None, color: str) -> None:
        if answer is not None and answer.finish_reason == "length":
            self._print_lines(TRUNCATED, "  ", f"2;{color}")

    def _print_protocol_decision(self, number: int, played: Round | None) -> None:
        """Print a decision that the protocol made instead of an agent."""
        if played is None or played.decision == Decision.NONE:
            return
        protocol = self.details.protocol
        if protocol.file.panel is not None:
            say(f"\n[round {number}] the panel decides ({protocol.file.panel.rule}): {verdict_word(played.decision)}")
            return
        verifier = protocol.verifier_name
        if verifier not in played.raw or any(message.agent == verifier for message in played.messages):
            say(f"\n[round {number}] the protocol decides: {verdict_word(played.decision)}")

    def _print_reasoning_size(self, answer: RecordedAnswer, color: str) -> None:
        if answer.reasoning:
            self._print_lines(f"({len(answer.reasoning)} characters of reasoning; --json has them)", "  ", f"2;{color}")

    def _print_answer_heading(self, number: int, agent: str, label: str, color: str) -> None:
        say()
        player = label_player(agent, self.stances.get(agent), remark=label)
        self._print_lines(f"[round {number}] {player}", "", f"1;{color}")

    def _print_lines(self, text: str, indent: str = "", style: str = "") -> None:
        for line in wrap_lines(text, self.width, indent):
            say(line, style)
