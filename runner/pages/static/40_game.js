// A game as a conversation: channels in columns, each attempt, and the exact chat that was sent.

class GameView {
  constructor(run) {
    this.run = run;
    this.games = run.games;
    this.about = run.about;
    this.container = el("div");
    this.as = "";
    this.until = Infinity;
    this.id = null;
  }

  get list() {
    return this.run.list;
  }

  async show(id, as) {
    const row = this.games.row(id);
    if (!row) {
      replaceContent(this.container, el("p", { class: "empty" }, `There is no game ${id} in this run.`));
      return;
    }
    this.id = id;
    this.as = this.about.agents.some((agent) => agent.name === as) ? as : "";
    const [game] = await Promise.all([this.games.game(row.place), this.run.analyses.open()]);
    if (this.id === id) this.draw(row, game);
  }

  draw(row, game) {
    const rounds = groupByRound(game.turns);
    // Hide the rounds from an agent's last turn on: it never receives their messages.
    this.until = this.as ? Math.max(-1, ...game.turns.filter((turn) => turn.agent === this.as).map((turn) => turn.round)) : Infinity;
    replaceContent(this.container,
      this.head(row),
      el("div", { class: "beside" },
        el("div", {}, this.columns(game), el("div", { class: "conversation" }, [...rounds].map(([number, turns]) => this.round(number, turns, game)))),
        el("aside", { class: "facts", "aria-label": "Facts" }, this.as ? this.agentFacts() : [this.facts(row, game), this.run.analyses.panel(row.id), this.run.notes.panel(row.id)])));
    document.title = plain(`${row.datapoint} · ${this.about.run_id}`);
    announce(this.as ? `Game ${row.datapoint} as ${this.as} saw it` : `Game ${row.datapoint}, ${row.correct === true ? "right" : row.decision === null ? "without a verdict" : row.correct === null ? "decided" : "wrong"}`);
  }

  head(row) {
    const link = (step, label, key) => {
      const id = this.list.neighbor(row.id, step);
      return id === undefined ? el("span", { class: "step off" }, label) : el("a", { class: "step", href: this.link(id), "aria-keyshortcuts": key }, label);
    };
    const views = ["", ...this.about.agents.map((agent) => agent.name)];
    return el("header", { class: "game" },
      el("nav", { "aria-label": "From game to game" }, el("a", { href: this.list.address(), "aria-keyshortcuts": "u" }, "All games"), link(-1, "Previous", "k"), link(1, "Next", "j")),
      el("h2", {}, row.datapoint, " ", this.as ? null : verdictMark(row)),
      el("p", { class: "which" }, this.as ? null : `label ${verdictWord(row.label)}, verdict ${verdictWord(row.decision) ?? "none"} · `, `game ${row.id}, repeat ${row.repeat} `, copyButton(() => location.href, "Copy the link")),
      el("div", { class: "filters", role: "group", "aria-label": "Whose view" }, views.map((name) =>
        el("button", { type: "button", "aria-pressed": String(name === this.as), onclick: () => { location.hash = this.link(row.id, name); } },
          name ? `As ${name} saw it` : "Everything"))));
  }

  link(id, as = this.as) {
    return address("run", this.about.run_id, "game", id, { as });
  }

  agent(name) {
    return this.about.agents.find((agent) => agent.name === name);
  }

  // Return the name of an agent, and in brackets its name in the chats if that is different.
  displayName(name) {
    const known = this.agent(name)?.known_as;
    return known ? `${name} (${known})` : name;
  }

  // Return the role of a message in a chat, with its sender if the chat names one.
  sender({ role, name }) {
    const agents = this.about.agents.filter((agent) => agent.known_as === name);
    return name === undefined ? role : `${role}: ${agents.length === 1 ? this.displayName(agents[0].name) : name}`;
  }

  sees(channel) {
    return !this.as || this.agent(this.as).channels.includes(channel);
  }

  round(number, allTurns, game) {
    const turns = allTurns.filter((turn) => number < this.until || turn.agent === this.as);
    const channels = this.about.channels.filter((channel) => this.sees(channel.name));
    const spoken = channels.filter((channel) => turns.some((turn) => turn.messages.some((message) => message.channel === channel.name)));
    const silent = turns.filter((turn) => !turn.messages.length && (!this.as || this.as === turn.agent));
    if (!spoken.length && !silent.length) return null;
    const shownAgents = new Set(); // agents whose details are shown; a turn with messages in several channels shows them once
    return el("section", { class: "round" },
      el("h3", {}, `Round ${number}`, turns.some((turn) => turn.cut_off) ? el("span", { class: "badge" }, "cut off") : null),
      el("div", { class: "channels" }, spoken.map((channel) => el("div", { class: `channel${channel.private ? " private" : ""}` },
        this.about.channels.length > 1 ? el("h4", {}, channel.name, channel.private ? el("span", { class: "badge" }, `private: ${channel.members.join(", ")}`) : null) : el("h4", { class: "unseen" }, channel.name),
        turns.filter((turn) => turn.messages.some((message) => message.channel === channel.name)).map((turn) => {
          const first = !shownAgents.has(turn.agent);
          shownAgents.add(turn.agent);
          return this.turn(turn, game, turn.messages.filter((message) => message.channel === channel.name), first);
        })))),
      silent.length ? el("h4", { class: "unseen" }, "Without a message") : null,
      silent.map((turn) => this.turn(turn, game, [], true)));
  }

  turn(turn, game, messages, first) {
    const index = this.about.agents.findIndex((agent) => agent.name === turn.agent);
    const used = turn.answers.findLast((answer) => !answer.unusable && answer.selected !== false);
    const texts = messages.length ? messages : [{ channel: null, text: used ? used.text : "" }];
    const hasDecided = turn.decision !== null && turn.decision !== undefined;
    const stance = !this.as || this.as === turn.agent ? verdictWord(game.stances?.[turn.agent]) : undefined;
    return el("article", { class: `turn agent-${index % 6}${this.agent(turn.agent)?.verifier ? " asks" : ""}`, "aria-label": turn.agent },
      el("h5", {}, this.displayName(turn.agent), stance ? el("span", { class: "badge" }, `argues for ${stance}`) : null, this.agent(turn.agent)?.verifier && turn.agent !== "verifier" ? el("span", { class: "badge" }, "verifier") : null,
        hasDecided && (!this.as || this.as === turn.agent) ? el("span", { class: `said ${verdictWord(turn.decision)}` }, `decides: ${verdictWord(turn.decision)}`) : null,
        hasDecided && turn.ignored && (!this.as || this.as === turn.agent) ? el("span", { class: "badge" }, "verdict ignored: too early") : null),
      texts.map(({ channel, text }) => this.message(game.read(text), this.as ? [] : this.run.analyses.ofMessage(game.id, turn.agent, channel, turn.round))),
      this.as || !first ? null : (turn.stated ?? []).map((line) => el("p", { class: "cost" }, line)),
      first && (!this.as || this.as === turn.agent) ? this.below(turn, game, used) : null);
  }

  message(text, answers) {
    return [analyzedText(text, answers), answers.map((answer) => analysisAnswer(answer))];
  }

  // Show the details of a turn: every attempt, failed calls, the chat, and the cost.
  below(turn, game, last) {
    const { answers, failed, chat } = turn;
    const bad = answers.filter((answer) => answer.unusable).length;
    // An agent's private notes, and text for no channel, are not part of any message.
    const isWhole = !last?.text || !turn.messages.length || turn.messages.some((message) => game.read(message.text).trim() === game.read(last.text).trim());
    const labels = [
      bad ? `${bad} ${bad > 1 ? "answers" : "answer"} could not be used` : null,
      failed.length ? `${failed.length} failed ${failed.length > 1 ? "calls" : "call"}` : null,
      !bad && answers.length > 1 ? `${answers.length} ${last?.selected === undefined ? "answers" : "candidates"}` : null,
      !bad && answers.length === 1 && !isWhole ? "The whole answer" : null,
    ].filter(Boolean);
    return [
      labels.length ? collapsible("attempts", labels.join(", "), () => [
        answers.length > 1 || bad || !isWhole ? answers.map((answer) => this.attempt(answer, game)) : null,
        failed.map((call) => el("div", { class: "attempt" }, el("h6", {}, "Failed call"), el("p", { class: "why" }, call.error), call.wait > 0 ? el("p", { class: "cost" }, `retried after ${call.wait.toFixed(1)} s`) : null)),
      ]) : null,
      last?.reasoning !== undefined ? collapsible("reasoning", "Reasoning", () => textOrEmpty(game.read(last.reasoning))) : null,
      chat.length ? collapsible("chat", `The chat that was sent (${chat.length} ${chat.length > 1 ? "messages" : "message"})`, () => [
        answers.length + failed.length > 1 ? el("p", { class: "cost" }, "All attempts of a turn use the same chat.") : null,
        chat.map((message) => el("div", { class: `sent ${message.role}` }, el("h6", {}, this.sender(message)), textOrEmpty(game.read(message.text)))),
      ]) : null,
      last?.logprobs ? collapsible("logprobs", "Log-probabilities of the verdict", () => logprobsTable(last.logprobs)) : null,
      last ? el("p", { class: "cost" }, this.cost(last)) : null,
    ];
  }

  attempt(answer, game) {
    const number = (answer.vote ?? 0) + 1;
    const title = answer.selected === undefined ? `Attempt ${answer.attempt + 1}${answer.vote ? `, vote ${number}` : ""}`
      : `Candidate ${number}${answer.attempt ? `, attempt ${answer.attempt + 1}` : ""}${answer.score === undefined ? "" : `, score ${Number(answer.score.toPrecision(3))}`}`;
    return el("div", { class: "attempt" },
      el("h6", {}, title, answer.unusable ? null : el("span", { class: "badge" }, answer.selected === false ? "not selected" : "used")),
      answer.unusable ? el("p", { class: "why" }, answer.unusable) : null,
      answer.text === undefined ? el("p", { class: "cost" }, "The answer has no text.") : textOrEmpty(game.read(answer.text)),
      answer.reasoning !== undefined ? collapsible("reasoning", "Reasoning", () => textOrEmpty(game.read(answer.reasoning))) : null,
      answer.logprobs ? logprobsTable(answer.logprobs) : null,
      el("p", { class: "cost" }, this.cost(answer)));
  }

  cost(answer) {
    const [prompt, completion, cached] = answer.tokens;
    return [
      `${count(prompt)} + ${count(completion)} tokens`,
      cached ? `${count(cached)} cached` : null,
      answer.usd ? inDollars(answer.usd) : null,
      answer.latency_ms === undefined ? null : `${(answer.latency_ms / 1000).toFixed(2)} s`,
      answer.p_accept === undefined ? null : `P(accept) ${formatNumber(answer.p_accept, 3)}`,
      answer.finish && answer.finish !== "stop" ? `ended by ${answer.finish}` : null,
      answer.model,
    ].filter(Boolean).join(" · ");
  }

  facts(row, game) {
    const yes = (value) => (value === null ? null : value ? "yes" : "no");
    const facts = [
      ["Label", verdictWord(row.label) ?? "not known"], ["Verdict", verdictWord(row.decision) ?? "none"], ["Outcome", row.outcome.replaceAll("_", " ")],
      ["Stance", row.stance === null ? null : verdictWord(row.stance)],
      ["Seats swapped", yes(row.swapped)], ["Stances exchanged", yes(row.stances_exchanged)],
      ["Rewards", Object.entries(game.rewards).map(([agent, reward]) => `${agent} ${Number(reward.toPrecision(6))}`).join(", ") || "none"],
      ...Object.entries(game.confidence).map(([name, value]) => [CONFIDENCE[name] ?? name.replaceAll("_", " "), typeof value === "number" ? formatNumber(value, 3) : value]),
      ["Votes", game.votes?.map((vote) => verdictWord(vote) ?? "none").join(", ")],
      ...(game.verdicts ?? []).map((verdict) => [`Verdict before round ${verdict.round}`, [verdictWord(verdict.decision) ?? "none", verdict.votes ? `votes ${verdict.votes.map((vote) => verdictWord(vote) ?? "none").join(", ")}` : null,
        typeof verdict.confidence_stated === "number" ? `stated ${verdict.confidence_stated.toFixed(2)}` : null, typeof verdict.confidence_logprob === "number" ? `log-probability ${formatNumber(verdict.confidence_logprob, 3)}` : null, verdict.error].filter(Boolean).join("; ")]),
      ...this.about.agents.map(({ name }) => [`Tokens of ${name}`, row[`tokens.${name}`] ? count(row[`tokens.${name}`]) : null]),
      ["Tokens", count(row.tokens)], ...this.costFacts(game), ["Seconds", (row.latency_ms / 1000).toFixed(1)],
      ["Group", row.group === row.datapoint ? null : row.group], ["Error", game.error],
    ];
    return el("dl", {}, facts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  // Return the cost of each agent's answers, if all prices are known and the cost is not 0.
  costFacts(game) {
    const costs = Object.entries(game.costs);
    const total = costs.some(([, usd]) => usd === null) ? null : costs.reduce((sum, [, usd]) => sum + usd, 0);
    return [...costs.map(([name, usd]) => [`Cost of ${name}`, usd]), ["Cost", total]].map(([name, usd]) => [name, usd ? inDollars(usd) : null]);
  }

  // The view of one agent shows nothing that the agent did not know: no label, verdict, reward or other agents' stances.
  agentFacts() {
    const agent = this.agent(this.as);
    return el("dl", {}, el("dt", {}, "Agent"), el("dd", {}, agent.name, agent.verifier && agent.name !== "verifier" ? " (verifier)" : ""), el("dt", {}, "Hears"), el("dd", {}, agent.channels.join(", ") || "nothing"),
      el("dt", {}, "Not shown"), el("dd", {}, "what it never received: label, result, rewards, other agents' chats"));
  }

  // Show the columns of the datapoint; in an agent's view, only those that appear in its chats.
  columns(game) {
    let columns = Object.entries(game.columns).map(([name, text]) => [name, game.read(text)]);
    if (this.as) {
      const sent = game.turns.filter((turn) => turn.agent === this.as).flatMap((turn) => turn.chat.map((message) => game.read(message.text)));
      columns = columns.filter(([, text]) => text.trim() && sent.some((chat) => chat.includes(text.trim())));
    }
    if (!columns.length) return null;
    const isShort = (text) => text.length <= 60 && text.trim() && !text.includes("\n");
    const short = columns.filter(([, text]) => isShort(text));
    const long = columns.filter(([, text]) => !isShort(text));
    return el("section", { class: "columns" }, el("h3", {}, this.as ? "What it received" : "Datapoint"), short.length ? el("dl", {}, short.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])) : null, long.map(([name, text]) =>
      el("details", { open: true }, el("summary", {}, name), columnBlock(text))));
  }
}

const CONFIDENCE = { __proto__: null, confidence_stated: "P(accept), stated", confidence_logprob: "P(accept), by log-probability" };

// Format the cost of a call or game; a call often costs less than 0.01 cents.
function inDollars(usd) {
  return `$${usd.toFixed(usd < 0.01 ? 6 : 4)}`;
}

function groupByRound(turns) {
  const rounds = new Map();
  for (const turn of turns) rounds.set(turn.round, [...(rounds.get(turn.round) ?? []), turn]);
  return rounds;
}

route("run/*/game/*", async (container, [id, game], query) => {
  const run = site.runs.get(id);
  if (!run) return replaceContent(container, el("p", { class: "empty" }, `There is no run ${id} in this page.`));
  replaceContent(container, run.view.container);
  const step = (by) => {
    const next = run.list.neighbor(game, by);
    if (next !== undefined) location.hash = run.view.link(next);
  };
  keys.set("j", () => step(1)).set("k", () => step(-1)).set("u", () => { location.hash = run.list.address(); });
  await run.read();
  await run.view.show(game, query.get("as") ?? "");
});
