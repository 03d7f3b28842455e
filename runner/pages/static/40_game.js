// One game as a conversation: channels side by side, each attempt, and the exact chat that was sent for it.

class GameView {
  constructor(run) {
    Object.assign(this, { run, games: run.games, about: run.about, place: el("div"), as: "", id: null });
  }

  get list() {
    return this.run.list;
  }

  async show(id, as) {
    const row = this.games.row(id);
    if (!row) {
      replaced(this.place, el("p", { class: "empty" }, `There is no game ${id} in this run.`));
      return;
    }
    this.id = id;
    this.as = this.about.agents.some((agent) => agent.name === as) ? as : "";
    const game = await this.games.game(row.place);
    if (this.id === id) this.draw(row, game);
  }

  draw(row, game) {
    const rounds = new Map();
    for (const turn of game.turns) rounds.set(turn.round, [...(rounds.get(turn.round) ?? []), turn]);
    replaced(this.place,
      this.head(row),
      el("div", { class: "beside" },
        el("div", { class: "conversation" }, [...rounds].map(([number, turns]) => this.round(number, turns, game))),
        el("aside", { class: "facts" }, this.facts(row, game), this.run.notes.panel(row.id))),
      this.columns(game));
    document.title = `${row.datapoint} · ${this.about.run_id}`;
    announce(`Game ${row.datapoint}, ${row.correct === true ? "right" : row.decision === null ? "without a verdict" : "wrong"}`);
  }

  head(row) {
    const link = (step, word, key) => {
      const id = this.list.beside(row.id, step);
      return id === undefined ? el("span", { class: "step off" }, word) : el("a", { class: "step", href: this.link(id), "aria-keyshortcuts": key }, word);
    };
    const views = ["", ...this.about.agents.map((agent) => agent.name)];
    return el("header", { class: "game" },
      el("nav", { "aria-label": "Games" }, el("a", { href: this.list.address() }, "All games"), link(-1, "Previous", "k"), link(1, "Next", "j")),
      el("h2", {}, row.datapoint, " ", verdictMark(row)),
      el("p", { class: "which" }, `game ${row.id}, repeat ${row.repeat}`),
      el("div", { class: "filters", role: "group", "aria-label": "Whose view" }, views.map((name) =>
        el("button", { type: "button", "aria-pressed": String(name === this.as), onclick: () => { location.hash = this.link(row.id, name); } },
          name ? `As ${name} saw it` : "Everything"))));
  }

  link(id, as = this.as) {
    return address("run", this.about.run_id, "game", id, { as });
  }

  sees(channel) {
    return !this.as || this.about.agents.find((agent) => agent.name === this.as).channels.includes(channel);
  }

  round(number, turns, game) {
    const channels = this.about.channels.filter((channel) => this.sees(channel.name));
    const spoken = channels.filter((channel) => turns.some((turn) => turn.messages.some((said) => said.channel === channel.name)));
    const silent = turns.filter((turn) => !turn.messages.length && (!this.as || this.as === turn.agent));
    return el("section", { class: "round" },
      el("h3", {}, `Round ${number}`),
      el("div", { class: "channels" }, spoken.map((channel) => el("div", { class: `channel${channel.private ? " private" : ""}` },
        this.about.channels.length > 1 ? el("h4", {}, channel.name, channel.private ? el("span", { class: "badge", title: `seen by ${channel.members.join(", ")}` }, "private") : null) : null,
        turns.filter((turn) => turn.messages.some((said) => said.channel === channel.name)).map((turn) =>
          this.turn(turn, game, turn.messages.filter((said) => said.channel === channel.name)))))),
      silent.map((turn) => this.turn(turn, game, [])));
  }

  turn(turn, game, messages) {
    const place = this.about.agents.findIndex((agent) => agent.name === turn.agent);
    const last = turn.answers.findLast((answer) => !answer.unusable);
    const unusable = turn.answers.filter((answer) => answer.unusable);
    const whole = !this.as || this.as === turn.agent;
    const texts = messages.length ? messages.map((said) => game.read(said.text)) : [last ? game.read(last.text) : ""];
    return el("article", { class: `turn agent-${place % 6}` },
      el("h5", {}, turn.agent, this.role(turn), turn.decision !== null && turn.decision !== undefined ? el("span", { class: `said ${WORDS[turn.decision]}` }, `decides: ${WORDS[turn.decision]}`) : null),
      texts.map((text) => el("div", { class: "text" }, text.trim() ? text : el("em", {}, "(nothing was said)"))),
      whole ? [
        unusable.length || turn.failed.length ? el("details", { class: "attempts" },
          el("summary", {}, [unusable.length ? `${unusable.length} answer${unusable.length > 1 ? "s" : ""} could not be used` : null, turn.failed.length ? `${turn.failed.length} failed call${turn.failed.length > 1 ? "s" : ""}` : null].filter(Boolean).join(", ")),
          unusable.map((answer) => el("div", { class: "attempt" }, el("p", { class: "why" }, answer.unusable), el("div", { class: "text" }, game.read(answer.text)))),
          turn.failed.map((failed) => el("p", { class: "why" }, failed.error))) : null,
        last?.reasoning !== undefined ? el("details", {}, el("summary", {}, "Reasoning"), el("div", { class: "text" }, game.read(last.reasoning))) : null,
        turn.chat.length ? el("details", { class: "chat" }, el("summary", {}, `The chat that was sent (${turn.chat.length} messages)`),
          turn.chat.map((said) => el("div", { class: `sent ${said.role}` }, el("h6", {}, said.name ? `${said.role} (${said.name})` : said.role), el("div", { class: "text" }, game.read(said.text))))) : null,
        last ? el("p", { class: "cost" }, this.cost(last)) : null,
        last?.logprobs ? this.logprobs(last.logprobs) : null,
      ] : null);
  }

  role(turn) {
    const agent = this.about.agents.find((one) => one.name === turn.agent);
    return agent?.verifier ? el("span", { class: "badge" }, "verifier") : null;
  }

  cost(answer) {
    const [prompt, completion, cached] = answer.tokens;
    const said = [`${prompt.toLocaleString("en")} + ${completion.toLocaleString("en")} tokens`];
    if (cached) said.push(`${cached.toLocaleString("en")} cached`);
    if (answer.latency_ms !== undefined) said.push(`${(answer.latency_ms / 1000).toFixed(2)} s`);
    if (answer.finish && answer.finish !== "stop") said.push(`ended by ${answer.finish}`);
    said.push(answer.model);
    return said.join(" · ");
  }

  logprobs(tokens) {
    const rows = (Array.isArray(tokens) ? tokens : []).slice(0, 20);
    return el("details", { class: "logprobs" }, el("summary", {}, "Log-probabilities of the verdict"),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Token"), el("th", { scope: "col", class: "number" }, "Probability"), el("th", { scope: "col" }, "Others"))),
        el("tbody", {}, rows.map((one) => el("tr", {}, el("td", {}, el("code", {}, one.token)), el("td", { class: "number" }, Math.exp(one.logprob).toFixed(4)),
          el("td", {}, Object.entries(one.top ?? {}).slice(0, 5).map(([token, logprob]) => [el("code", {}, token), ` ${Math.exp(logprob).toFixed(3)}  `])))))));
  }

  facts(row, game) {
    const facts = [
      ["Label", WORDS[row.label]], ["Verdict", WORDS[row.decision] ?? "none"], ["Outcome", row.outcome.replaceAll("_", " ")],
      row.stance === null ? null : ["Stance", WORDS[row.stance]],
      ["Rewards", Object.entries(game.rewards).map(([agent, reward]) => `${agent} ${reward}`).join(", ") || "none"],
      ...Object.entries(game.confidence).map(([name, value]) => [name.replaceAll("_", " "), typeof value === "number" ? value.toFixed(3) : value]),
      game.votes ? ["Votes", game.votes.map((vote) => WORDS[vote] ?? "none").join(", ")] : null,
      ["Tokens", (row.prompt_tokens + row.completion_tokens).toLocaleString("en")],
      ["Seconds", (row.latency_ms / 1000).toFixed(1)],
      row.group !== row.datapoint ? ["Group", row.group] : null,
      game.error ? ["Error", game.error] : null,
    ].filter(Boolean);
    return el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  columns(game) {
    return el("section", { class: "columns" }, el("h3", {}, "Datapoint"), Object.entries(game.columns).map(([name, packed]) => {
      const text = game.read(packed);
      return el("details", { open: text.length < 4000 }, el("summary", {}, name), looksLikeCode(text) ? highlighted(text) : el("div", { class: "text" }, text));
    }));
  }
}

const CODE = /^\s*(?:def |class |import |from \w+ import |#include|int main|function |const |let |public class|for \(|while \()/m;

function looksLikeCode(text) {
  return text.includes("\n") && CODE.test(text);
}

const TOKENS = /(#[^\n]*|\/\/[^\n]*)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\b(and|as|assert|async|await|break|case|catch|class|const|continue|def|del|do|elif|else|except|finally|for|from|function|global|if|import|in|int|is|lambda|let|new|not|or|pass|raise|return|static|throw|try|void|while|with|yield|None|True|False|null|true|false)\b|\b(\d[\d_.eExXa-fA-F]*)\b/g;

function highlighted(text) {
  const code = el("code");
  let end = 0;
  for (const found of text.matchAll(TOKENS)) {
    if (found.index > end) add(code, [text.slice(end, found.index)]);
    const kind = found[1] ? "comment" : found[2] ? "string" : found[3] ? "keyword" : "figure";
    code.append(el("span", { class: kind }, found[0]));
    end = found.index + found[0].length;
  }
  add(code, [text.slice(end)]);
  return el("pre", { class: "code", tabindex: "0" }, code);
}

route("run/*/game/*", async (place, [id, game], words) => {
  const run = site.runs.get(id);
  if (!run) return replaced(place, el("p", { class: "empty" }, `There is no run ${id} in this page.`));
  replaced(place, run.view.place);
  const step = (by) => {
    const next = run.list.beside(game, by);
    if (next !== undefined) location.hash = run.view.link(next);
  };
  keys.set("j", () => step(1)).set("k", () => step(-1)).set("u", () => { location.hash = run.list.address(); });
  await run.read();
  await run.view.show(game, words.get("as") ?? "");
});
