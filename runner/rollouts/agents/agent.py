"""An agent of a protocol: renders the messages that it may see as a chat, and parses its model's answer as a reply.

The engine plays games with agents, and users can call them directly (see `runner.rollouts.agents.direct` and
`runner.rollouts.agents.whole_agent`).
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from runner.base.errors import (
    ContentFilterError,
    ContentIsNoneError,
    GenerationError,
    InvalidConfidenceError,
    InvalidDecisionError,
    InvalidResponseError,
    RunError,
    ScratchpadError,
    StatementError,
    UnknownFinishReasonError,
    WordLimitError,
)
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage, chat_messages
from runner.game.prompts.chat_format import ChatFormat, format_chat
from runner.game.prompts.supervised import supervised_example
from runner.game.prompts.templates import CONFIDENCE, LAST_ROUND, PromptSet, own_variables, subject_variables
from runner.game.protocols.answer_parser import ParsedAnswer, VerdictFork, parse_answer, verdict_fork, verdict_span
from runner.game.protocols.answer_verdicts import (
    ANSWER_MARKER,
    certain_verdict,
    check_letter_alone,
    decision_line,
    display_marker,
)
from runner.game.protocols.ballot import MAX_ANSWERS, OPEN, Ballot, CandidateAnswers, answer_position
from runner.game.protocols.checkers import label_answer, stated_number
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import Reply, Round, find_subject
from runner.game.protocols.speeches import count_words, deliver, visible_start, without_notes
from runner.game.protocols.statements import GameSubject, Statement
from runner.models.interface import Choice, Complete, Completion, Request, ResponseHint, SampleKey
from runner.models.layers.answer_form import DECISION, answer_schema, render_json_answer
from runner.models.logprobs import p_accept
from runner.models.settings import ModelSettings
from runner.rollouts.agents.arguments import check_name, protocol_of_spec
from runner.rollouts.agents.votes import WaitForReplies, reply_by_vote
from runner.spec.experiment import AgentSettings, Experiment


@value_class(frozen=True)
class AgentRuntime:
    """The parts of an agent that are not in the spec: the prompts, and the function that calls models.

    If `complete` is None, the agent makes a connection of its own when its model is called.
    """

    prompts: PromptSet
    complete: Complete | None = None


@value_class(frozen=True, slots=True)
class Observation:
    """The state of a game when an agent speaks: the rounds so far, the datapoint's columns, and the rollout's seed."""

    round: int
    rounds: Sequence[Round]
    columns: Mapping[str, Any]
    seed: int = 0
    prover_stance: int = 1
    datapoint: str = ""
    repeat: int = 0
    candidates: CandidateAnswers | None = None
    """The datapoint's candidate answers, if the protocol lists answers."""
    given_stance: int | None = None
    """The stance of the first prover, if the game sets it; see `Protocol.ballot`."""

    @property
    def answer_count(self) -> int | None:
        return None if self.candidates is None else len(self.candidates.texts)


class Agent:
    """One agent of one spec: renders its prompts, calls its model, and parses the answers.

    Raises:
        TypeError: `protocol_handler` is not a `Protocol`.
        ValueError: `protocol_handler` differs from the spec's protocol, or the spec has no agent of this name.
    """

    def __init__(
        self, hyper_params: Experiment, settings: AgentRuntime, agent_name: str, protocol_handler: Protocol
    ) -> None:
        check_name(agent_name, hyper_params)
        self.hyper_params = hyper_params
        self.settings = settings
        self.agent_name = agent_name
        self.protocol_handler = protocol_of_spec(protocol_handler, hyper_params)
        self.agent_params: AgentSettings = hyper_params.agents[agent_name]
        self.model_group = self.agent_params.model
        self.model_settings = hyper_params.models[self.model_group]
        self.agent_spec = protocol_handler.agent_spec(agent_name)
        self._variables_by_round: dict[tuple[int, int], dict[str, Any]] = {}
        self.checker = hyper_params.dataset.checker
        reference = () if self.checker is None or self.checker.column is None else (self.checker.column,)
        self.hidden_columns = protocol_handler.hidden_columns(agent_name).union(reference)
        self.is_verifier = self.agent_spec.role == "verifier"
        self.is_prover = self.agent_spec.role == "prover"
        self.states_confidence = self.is_verifier and hyper_params.verdict.states
        """Whether the agent must state a confidence with its verdict."""
        self.only_judges = self.is_verifier and hyper_params.rejudge is not None
        """Whether the agent judges the debates of another run. If so, it asks no questions: each answer must decide."""

    @property
    def model_name(self) -> str:
        """The name of the model that answers, which may be fine-tuned."""
        return self.model_settings.name

    @property
    def base_model_name(self) -> str:
        """The name of the base model of a fine-tuned model; else `model_name` itself."""
        return self.model_settings.base_model or self.model_settings.name

    @property
    def max_message_rounds(self) -> int:
        return self.protocol_handler.max_message_rounds

    # Prompt

    def _variables(self, prover_stance: int, round_: int) -> dict[str, object]:
        """Return the variables of the agent's templates that do not depend on the datapoint."""
        variables = self._variables_by_round.get((prover_stance, round_))
        if variables is None:
            format_ = self.hyper_params.decision_format
            variables = self._variables_by_round[prover_stance, round_] = own_variables(
                self.protocol_handler,
                self.agent_name,
                prover_stance=prover_stance,
                round_=round_,
                max_response_words=self.agent_params.max_response_words,
                decision_format=format_ if self.states_confidence else replace(format_, confidence=""),
            )
            if self.only_judges:
                variables["questions_left"] = 0
        return variables

    def prompt(self, observation: Observation) -> list[ChatMessage]:
        """Return the chat messages for the agent's model at an observation, in the model group's chat format."""
        return self._chat(observation, observation.round, awaits_answer=True)

    def _chat(self, observation: Observation, system_round: int, *, awaits_answer: bool = False) -> list[ChatMessage]:
        """Return the chat at an observation, with the system message of `system_round`.

        `awaits_answer` is true for a prompt and false for a training example.
        """
        last_round = None
        is_last = observation.round == self.max_message_rounds - 1
        if self.agent_spec.last_round_message and (is_last or self.only_judges):
            last_round = self.instructions(LAST_ROUND, observation, observation.round)
        chat = chat_messages(
            self.protocol_handler,
            self.agent_name,
            observation.rounds,
            round_=observation.round,
            system=self.instructions("", observation, system_round),
            last_round=last_round,
            seed=observation.seed,
        )
        if last_round is not None and not is_last:
            # A debate to judge can end before the protocol's last round, where `chat_messages` adds this message.
            chat.append({"role": "system", "content": last_round})
        settings = self.model_settings
        return format_chat(chat, settings.resolved_chat_format, instructions=settings.system_role, asks=awaits_answer)

    def instructions(self, suffix: str, observation: Observation, round_: int) -> str:
        """Render the agent's template with this name suffix for a round, and return the text.

        If the agent must state a confidence, the text of the confidence template follows.

        Raises:
            TemplateFailedError: a template fails with these variables.
        """
        prompts, hidden = self.settings.prompts, self.hidden_columns
        columns = observation.columns
        if not hidden.isdisjoint(columns):
            columns = {name: value for name, value in columns.items() if name not in hidden}
        variables = self._variables(observation.prover_stance, round_)
        if extra_variables := self._extra_variables(observation):
            variables = {**variables, **extra_variables}
        if observation.candidates is not None:
            variables = {**variables, **self._answer_variables(observation)}
        elif self.protocol_handler.has_statements:
            variables = {**variables, **subject_variables(self._subject(observation))}
        text = prompts.render(self.agent_name + suffix, variables, columns)
        confidence_template = self.agent_name + CONFIDENCE
        if not self.states_confidence or confidence_template not in prompts.sources:
            return text
        return f"{text}\n\n{prompts.render(confidence_template, variables, columns)}"

    def example_observation(self, observation: Observation) -> Observation:
        """Return an observation with everything that the agent's prompt needs, to estimate its length."""
        return observation

    def _extra_variables(self, observation: Observation) -> Mapping[str, object]:  # noqa: ARG002
        """Return further variables for an observation, which a selector of candidates has."""
        return {}

    def _ballot(self, observation: Observation) -> Ballot:
        assert observation.candidates is not None
        return self.protocol_handler.ballot(observation.candidates, observation.seed, observation.given_stance)

    def _subject(self, observation: Observation) -> GameSubject:
        return find_subject(self.protocol_handler, observation.rounds)

    def _answer_variables(self, observation: Observation) -> dict[str, object]:
        """Return the variables of the agent's templates that describe the listed answers of the game."""
        ballot, marker = self._ballot(observation), self.hyper_params.decision_format.marker
        form = self.hyper_params.verdict.form
        return {
            **ballot.variables(self.agent_name),
            "answer_marker": ANSWER_MARKER,
            "decision_line": decision_line(marker, len(ballot.texts), form),
            "verdict_form": form,
        }

    def _headers(self, round_: int) -> tuple[str, ...]:
        """Return the text that starts the message to each channel; empty if the agent speaks in one channel."""
        channels = self.protocol_handler.can_be_active(round_)[self.agent_name]
        return tuple(self.agent_spec.headers[channel] for channel in channels) if len(channels) > 1 else ()

    def _response_hint(self, observation: Observation) -> ResponseHint:
        protocol, headers, marker = self.protocol_handler, self._headers(observation.round), self.agent_spec.scratchpad
        quotes, source = protocol.file.quotes, None
        if quotes is not None and quotes.source not in self.hidden_columns:
            source = observation.columns.get(quotes.source)
        order = None if observation.candidates is None else self._ballot(observation).order
        states = protocol.step(observation.round).states
        if states is not None:
            claims = self._subject(observation).claims
            count = protocol.parameters.max_claims if claims is None else len(claims.texts)
            return ResponseHint(headers, scratchpad=marker, source=source, states=(states, count))
        if order is not None and self._must_state_answer(observation.round):
            return ResponseHint(
                headers, scratchpad=marker, source=source, answer_order=order, answer_marker=ANSWER_MARKER
            )
        if not (self.is_verifier and protocol.step(observation.round).may_decide):
            return ResponseHint(headers, scratchpad=marker, source=source)
        return self._verdict_hint(observation.round, order)

    def _verdict_hint(self, round_: int, order: tuple[int, ...] | None) -> ResponseHint:
        """Return the hint for an answer that may be a verdict. `order` is the order of listed answers, if any."""
        protocol, marker, format_ = self.protocol_handler, self.agent_spec.scratchpad, self.hyper_params.decision_format
        headers = self._headers(round_)
        is_last = protocol.questions_left(round_ + 1, self.agent_name) == 0
        must_decide = self.must_decide_in(round_) or is_last
        if protocol.lists_answers:
            form, line_start = self.hyper_params.verdict.form, display_marker(format_.marker)
            return ResponseHint(
                headers,
                must_decide=must_decide,
                scratchpad=marker,
                answer_order=order,
                answer_marker=line_start,
                form=form,
            )
        confidence_marker = format_.confidence if self.states_confidence else None
        return ResponseHint(headers, format_.accept, format_.reject, must_decide, confidence_marker, marker)

    def _json_hint(self, round_: int, answer_count: int | None) -> ResponseHint | None:
        """Return the hint for an answer that the server constrains to JSON; None if it does not constrain this one."""
        if not (self.model_settings.constrain_decisions and self.is_verifier):
            return None
        step, lists_answers = self.protocol_handler.step(round_), self.protocol_handler.lists_answers
        has_numbers = lists_answers and self.hyper_params.verdict.form != "answer"
        if not step.may_decide or step.states is not None or has_numbers:
            return None
        order = tuple(range(answer_count or MAX_ANSWERS)) if lists_answers else None
        return self._verdict_hint(round_, order)

    def answer_schema(self, round_: int, answer_count: int | None = None) -> dict[str, Any] | None:
        """Return the JSON schema that the server must enforce for an answer in a round; None if there is none.

        `answer_count` is the number of listed answers of the game.
        """
        hint = self._json_hint(round_, answer_count)
        return None if hint is None else answer_schema(hint, self.model_settings.max_reasoning_length)

    def _must_state_answer(self, round_: int) -> bool:
        """Return whether the agent chooses the answer that it argues for, and must state it in this round."""
        is_first = round_ == self.protocol_handler.first_active_round(self.agent_name)
        return self.is_prover and self.agent_spec.stance == OPEN and is_first

    # Response

    def parse(self, text: str, round_: int, answer_count: int | None = None) -> ParsedAnswer:
        """Parse an answer; see `runner.game.protocols.answer_parser.parse_answer`.

        `answer_count` is the number of listed answers of the game.

        Raises:
            GenerationError: the answer is unusable, or has no decision although the agent only judges.
        """
        return self._parse(text, round_, answer_count, states_confidence=self.states_confidence)

    def _parse(
        self, text: str, round_: int, answer_count: int | None, *, states_confidence: bool, limits_words: bool = True
    ) -> ParsedAnswer:
        marker, max_words = self.agent_spec.scratchpad, self.agent_params.max_response_words
        text = text[visible_start(text, marker) :].lstrip() if marker is not None else text
        parsed = parse_answer(
            self.protocol_handler, self.agent_name, round_, text, self.hyper_params.decision_format,
            states_confidence=states_confidence, form=self.hyper_params.verdict.form, answer_count=answer_count,
        )  # fmt: skip
        self._check_analysis(text, parsed)
        if self.checker is not None and self.checker.by == "number":
            for answer in parsed.texts:
                stated_number(answer)
        words = count_words(parsed.messages) if self.agent_spec.word_limit == "ask" and limits_words else 0
        if words > max_words:
            raise WordLimitError(f"the answer has {words} words, and the limit is {max_words}")
        if parsed.decision == Decision.NONE and self.must_decide_in(round_):
            raise InvalidDecisionError(f"decision required: the answer holds {self._missing_verdict}")
        return parsed

    def _check_analysis(self, text: str, parsed: ParsedAnswer) -> None:
        """Check that an answer of an analysis does not go on after the letter of its verdict."""
        analysis, position = self.hyper_params.analysis, answer_position(parsed.decision)
        if analysis is not None and position is not None:
            is_shuffled = self.protocol_handler.parameters.shuffle_answers
            answers = analysis.answers if is_shuffled else analysis.answers[position : position + 1]
            check_letter_alone(text, self.hyper_params.decision_format.marker, answers)

    @property
    def _missing_verdict(self) -> str:
        """The text of a verdict that an answer lacks, for messages."""
        format_ = self.hyper_params.decision_format
        if self.protocol_handler.lists_answers:
            return f"no {display_marker(format_.marker)!r}"
        return f"neither {format_.accept!r} nor {format_.reject!r}"

    def read(self, choice: Choice, round_: int, answer_count: int | None = None) -> ParsedAnswer:
        """Return a model's answer as parsed, after checking that it is complete and not a refusal.

        Raises:
            GenerationError: the answer is unusable; the message says why.
        """
        return self._read(choice, round_, answer_count)[1]

    def _read(self, choice: Choice, round_: int, answer_count: int | None) -> tuple[str, ParsedAnswer]:
        """Return the text of an answer for the transcript, and the answer as parsed; see `read`."""
        text, decision = self._transcript_text(choice, round_, answer_count)
        parsed = self.parse(text, round_, answer_count)
        if decision not in (None, parsed.decision):
            raise InvalidDecisionError("the answer's text is read as another verdict than its property `decision`")
        return text, parsed

    def _transcript_text(self, choice: Choice, round_: int, answer_count: int | None) -> tuple[str, int | None]:
        """Return the text of an answer for the transcript and, if the answer is JSON, the code of its decision.

        Raises:
            GenerationError: the answer is unusable.
        """
        text, hint = self.usable_text(choice), self._json_hint(round_, answer_count)
        return (text, None) if hint is None else render_json_answer(hint, text, self.hyper_params.decision_format)

    def transcript_text(self, raw: str, round_: int, answer_count: int | None = None) -> str:
        """Return a recorded answer as the text that the transcript has: JSON as text, and other answers unchanged."""
        hint = self._json_hint(round_, answer_count)
        if hint is None:
            return raw
        try:
            return render_json_answer(hint, raw, self.hyper_params.decision_format)[0]
        except InvalidResponseError:
            return raw

    def usable_text(self, choice: Choice) -> str:
        """Return the text of an answer, after checking that it is complete and not a refusal.

        Raises:
            GenerationError: the answer is unusable.
        """
        return _usable_text(choice, self.model_settings, self.model_group)

    def verdict_span(self, text: str, round_: int) -> tuple[int, int] | None:
        """Return the start and end of the verdict in an answer; None if the answer has or may have no verdict."""
        protocol = self.protocol_handler
        if protocol.lists_answers or not self.is_verifier or not protocol.step(round_).may_decide:
            return None
        start = self._visible_start(text)
        span = verdict_span(text[start:], self.hyper_params.decision_format)
        return None if span is None else (start + span[0], start + span[1])

    def verdict_fork(self, text: str) -> VerdictFork | None:
        """Return the position where the texts of the two verdicts begin to differ; None without a verdict."""
        start = self._visible_start(text)
        fork = verdict_fork(text[start:], self.hyper_params.decision_format)
        return None if fork is None else replace(fork, at=fork.at + start)

    def _visible_start(self, text: str) -> int:
        """Return where an answer's visible part starts; its end if all of it is private.

        In JSON, it starts at the decision. Inside of other values, the quotes are escaped.
        """
        if self.model_settings.constrain_decisions and (decision := text.rfind(f'"{DECISION}"')) >= 0:
            return decision
        try:
            return visible_start(text, self.agent_spec.scratchpad)
        except ScratchpadError:
            return len(text)

    def _deliver(self, reply: Reply, observation: Observation) -> Reply:
        """Return a reply with its messages as the other agents see them."""
        return deliver(
            self.protocol_handler, self.agent_name, reply, rounds=observation.rounds, columns=observation.columns,
            max_words=self.agent_params.max_response_words,
        )  # fmt: skip

    async def respond(
        self,
        observation: Observation,
        complete: Complete,
        messages: Sequence[ChatMessage] | None = None,
        wait_for_replies: WaitForReplies | None = None,
    ) -> Reply:
        """Call the model until an answer is usable or the retry policy ends, and return the reply.

        For a verdict, each vote makes its own calls. `messages` is the observation's prompt, if the caller has rendered
        it already. `wait_for_replies` waits for the votes.

        Raises:
            GenerationError: the last allowed answer was unusable; `retry.invalid_response.then` does not replace it.
            CallError, ProviderRefusal: the model did not answer; see `runner.models`.
        """
        chat = self.prompt(observation) if messages is None else messages
        return await reply_by_vote(
            lambda vote: self.respond_once(observation, complete, chat, vote),
            self.votes_in(observation.round),
            must_decide=self.must_decide_in(observation.round),
            wait_for_replies=wait_for_replies,
        )

    async def respond_once(
        self, observation: Observation, complete: Complete, messages: Sequence[ChatMessage], vote: int
    ) -> Reply:
        """Return the reply of one vote or candidate; see `respond`."""
        reader = self.read_answers(observation, vote)
        request = self.request(observation, messages, next(reader))
        while True:
            completion = await complete(request)
            try:
                request = replace(request, sample=reader.send(completion))
            except StopIteration as end:
                reply: Reply = end.value
                return reply

    def request(self, observation: Observation, messages: Sequence[ChatMessage], sample: SampleKey) -> Request:
        """Return the request for an answer to `messages`, the prompt of the observation. `sample` is its key."""
        hint = self._response_hint(observation)
        schema = self.answer_schema(observation.round, observation.answer_count)
        return Request(self.model_group, messages, sample, observation.seed, hint, schema=schema)

    def read_answers(self, observation: Observation, vote: int = 0) -> Generator[SampleKey, Completion, Reply]:
        """Parse answers until one is usable, as a generator without I/O.

        Each step yields the key of the sample to request, and expects the completion for this key to be sent to the
        generator. At the end, the generator returns the reply.

        Raises:
            GenerationError, RunError: see `respond`.
        """
        unusable = calls = 0
        count, game = self._expected_count(observation), (observation.datapoint, observation.repeat)
        while True:
            completion = yield SampleKey(*game, observation.round, self.agent_name, calls, vote)
            calls += 1
            for index, choice in enumerate(completion.choices or (Choice(None, None),)):
                try:
                    text, parsed = self._read(choice, observation.round, count)
                except GenerationError as error:
                    unusable += 1
                    reply = self._reply_after_error(error, choice, observation.round, unusable, calls)
                else:
                    cut = choice.finish_reason == "length"
                    reply = Reply(
                        text, parsed.messages, parsed.decision, retry_count=unusable, token_limit=cut, calls=calls,
                        cut=cut, p_accept=self._panel_probability(parsed, completion, index),
                        statement=self._statement(parsed, observation), estimates=parsed.estimates,
                    )  # fmt: skip
                if reply is not None:
                    return self._deliver(reply, observation)

    def _expected_count(self, observation: Observation) -> int | None:
        """Return the number of listed answers, or of sub-claims whose probabilities must be stated; None if unknown."""
        if self.protocol_handler.step(observation.round).states != "estimates":
            return observation.answer_count
        claims = self._subject(observation).claims
        return None if claims is None else len(claims.texts)

    def _statement(self, parsed: ParsedAnswer, observation: Observation) -> Statement | None:
        """Return what an answer states, with the labels of a comparison. A function labels it later."""
        if not parsed.texts:
            return None
        if self.checker is None or self.checker.by == "function":
            return Statement(parsed.texts)
        return Statement(parsed.texts, tuple(label_answer(self.checker, t, observation.columns) for t in parsed.texts))

    def _panel_probability(self, parsed: ParsedAnswer, completion: Completion, index: int) -> float | None:
        """Return P(accept) of a judge's verdict if the panel decides by the mean; else None."""
        panel, settings = self.protocol_handler.file.panel, self.hyper_params.verdict
        if panel is None or panel.rule != "mean" or parsed.decision == Decision.NONE:
            return None
        if settings.states:
            return parsed.confidence
        fork = self.verdict_fork(completion.choices[index].text or "")
        return p_accept(completion, index, fork).value

    def must_decide_in(self, round_: int) -> bool:
        """Return whether an answer of the agent without a verdict is unusable in this round."""
        return self.only_judges or (self.is_verifier and self.protocol_handler.step(round_).must_decide)

    def votes_in(self, round_: int) -> int:
        """Return the number of votes to request in a round: the spec's `votes` if the agent can decide, else 1."""
        votes = self.hyper_params.votes
        if votes == 1 or not self.is_verifier:
            return 1
        return votes if self.protocol_handler.can_ever_decide(round_, self.agent_name) else 1

    def unusable_reason(self, choice: Choice, round_: int, answer_count: int | None = None) -> str | None:
        """Return why an answer is unusable and must be requested again; None if it is usable."""
        try:
            self.read(choice, round_, answer_count)
        except GenerationError as error:
            return f"the model refused: {error}" if choice.refusal else str(error)
        return None

    def undecided_reason(self, choice: Choice, round_: int, answer_count: int | None = None) -> str | None:
        """Return why the game has no verdict after a usable answer; None if it has one or a later round may decide."""
        protocol = self.protocol_handler
        if not self.is_verifier or protocol.questions_left(round_ + 1, self.agent_name) > 0:
            return None
        if not protocol.step(round_).may_decide or self.read(choice, round_, answer_count).decision != Decision.NONE:
            return None
        return f"the verifier must decide, and the answer holds {self._missing_verdict}"

    def _reply_after_error(
        self, error: GenerationError, choice: Choice, round_: int, unusable: int, calls: int
    ) -> Reply | None:
        """Return the reply that the retry policy gives the agent after an unusable answer; None to request another.

        Raises:
            RunError: the policy is `fail_run`.
            GenerationError: the policy ends the game, or replaces no answer of this kind.
        """
        retry, policy = self.hyper_params.retry, self.hyper_params.retry.invalid_response.then
        is_refusal = isinstance(error, ContentFilterError)
        if unusable < (retry.refused if is_refusal else retry.invalid_response).attempts:
            return None
        if policy == "fail_run" and not is_refusal:
            raise RunError(
                f"the run failed because {self.agent_name} gave {unusable} unusable answers in one turn "
                f"({error}); to continue after such a turn, change retry.invalid_response.then from fail_run"
            )
        is_replaceable = isinstance(error, InvalidResponseError) and not isinstance(error, StatementError)
        if policy != "empty_message" or not is_replaceable:
            raise error.after(unusable) from error
        cut = choice.finish_reason == "length"
        if isinstance(error, (InvalidConfidenceError, WordLimitError)):
            # The answer counts: only its confidence is unknown, or its message is too long.
            text, _ = self._transcript_text(choice, round_, None)
            parsed = self._parse(text, round_, None, states_confidence=False, limits_words=False)
            messages, decision = parsed.messages, parsed.decision
            is_limited = cut and isinstance(error, InvalidConfidenceError)
        else:
            text, decision, is_limited = choice.text or "", int(Decision.NONE), False
            messages = dict.fromkeys(self.protocol_handler.can_be_active(round_)[self.agent_name], "")
        return Reply(text, messages, decision, unusable, token_limit=is_limited, calls=calls, cut=cut)

    # Fine-tuning

    def learned_text(self, raw: str) -> str:
        """Return the part of an answer that is training data: without private notes, unless the spec requests them."""
        return raw if self.agent_params.train_scratchpad else without_notes(raw, self.agent_spec.scratchpad)

    def with_chat_format(self, chat_format: ChatFormat | None) -> Self:
        """Return a copy of this agent with another chat format for its model group; for None, the agent itself."""
        if chat_format is None:
            return self
        agent = copy.copy(self)
        agent.model_settings = replace(self.model_settings, chat_format=chat_format)
        return agent

    def true_verdict(self, label: int | None) -> str:
        """Return the text of the decision that is right for a label, with certainty if verdicts state a confidence.

        Raises:
            ValueError: the agent is not a verifier, or there is no label.
        """
        if not self.is_verifier:
            raise ValueError(
                f"{self.agent_name} is not a verifier and has no guess to replace by the label; "
                "set replace_verifier_guess_with_true_label=False"
            )
        if label is None:
            raise ValueError(
                "the datapoint has no label to replace the guess; "
                "set replace_verifier_guess_with_true_label=False, or pass a label"
            )
        format_ = self.hyper_params.decision_format
        verdict = format_.accept if label else format_.reject
        return self._as_visible(f"{verdict}\n{format_.confidence} 1" if self.states_confidence else verdict)

    def _as_visible(self, text: str) -> str:
        """Return a text as the part of an answer after the private notes, as the agent's later prompts have it."""
        return text if self.agent_spec.scratchpad is None else f"{self.agent_spec.scratchpad}\n{text}"

    def true_answer_verdict(self, observation: Observation) -> str:
        """Return the text of the decision for a right answer of a game, with certainty if verdicts have numbers.

        Raises:
            ValueError: it is not known which answers are right.
        """
        ballot, verdict = self._ballot(observation), self.hyper_params.verdict
        if not ballot.right:
            raise ValueError("it is not known which answers are right; do not replace the verifier's guess")
        marker = display_marker(self.hyper_params.decision_format.marker)
        choice = certain_verdict(min(ballot.right), len(ballot.texts), verdict.form)
        return self._as_visible(f"{marker} {choice}")

    def fine_tune_example(
        self,
        observation: Observation,
        label: int | None,
        *,
        ensure_last_message_is_assistant: bool = True,
        replace_verifier_guess_with_true_label: bool = False,
    ) -> list[ChatMessage] | None:
        """Return the training example of a finished game: the full chat, as in the original code.

        Return None if the agent said nothing.

        Raises:
            ValueError: the label must replace the guess, but the agent is not a verifier or there is no label.
        """
        verdict = None
        if replace_verifier_guess_with_true_label:
            is_listed = observation.candidates is not None
            verdict = self.true_answer_verdict(observation) if is_listed else self.true_verdict(label)
        return supervised_example(
            self.final_prompt(observation),
            self.agent_name,
            true_verdict=verdict,
            ensure_last_message_is_assistant=ensure_last_message_is_assistant,
        )

    def final_prompt(self, observation: Observation) -> list[ChatMessage]:
        """Return the full chat of a finished game in the group's chat format, as the original code trains on it.

        The chat has the system message of the agent's first turn, because in later turns the message states fewer
        questions left.
        """
        return self._chat(observation, self.protocol_handler.first_active_round(self.agent_name) or 0)


_USABLE_REASONS = ("stop", "length", "eos", "eos_token")
"""The finish reasons of usable answers. Together and old versions of TGI send `eos` and `eos_token` for `stop`."""


def _usable_text(choice: Choice, settings: ModelSettings, group: str) -> str:
    """Return the text of an answer of a model group, after checking that the answer is complete.

    Raises:
        ContentFilterError: a content filter cut the answer, or the model refused.
        UnknownFinishReasonError: the answer ended neither normally nor at the token limit.
        ContentIsNoneError: the answer has no text.
    """
    if choice.finish_reason == "content_filter" or choice.refusal:
        raise ContentFilterError(choice.refusal or "the content filter cut the answer")
    if choice.finish_reason not in _USABLE_REASONS:
        raise UnknownFinishReasonError(f"the answer ended with finish_reason {choice.finish_reason!r}")
    if choice.text is None:
        hint = f": {settings.limit_advice(group)}" if choice.finish_reason == "length" else ""
        raise ContentIsNoneError(f"the answer has no content{hint}")
    return choice.text
