// Live updates of a page from a server: the state of its runs, and new games.

const STATE_NAMES = {
  playing: "Playing", done: "Done", incomplete: "Incomplete", failed: "Failed", interrupted: "Stopped",
  killed: "Killed: its process is gone", damaged: "Damaged",
};
const LONGEST_WAIT = 30_000; // milliseconds between requests to a server that does not answer

class Live {
  constructor(about) {
    this.every = about.poll;
    this.known = new Set(about.runs);
    this.states = new Map();
    this.panels = new Map();
    this.notes = new Map();
    this.failures = 0;
    this.lost = null; // the time of the first failed request since the last answer
  }

  start() {
    for (const about of site.about.runs) if (about.state?.run_id) this.states.set(about.run_id, about.state);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.ask(); });
    this.ask();
  }

  async ask() {
    clearTimeout(this.timer);
    const number = (this.number = (this.number ?? 0) + 1);
    try {
      const answer = await fetch("state.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server said ${answer.status}`);
      const { runs } = await answer.json();
      this.failures = 0;
      this.lost = null;
      for (const state of runs) if (state.run_id) await this.take(state);
      if (runs.some((state) => state.run_id && !this.known.has(state.run_id))) this.reloadWhenSafe("A new run has started.");
    } catch (error) {
      this.failures += 1;
      this.lost ??= new Date();
      if (this.failures === 1) announce("The server is not responding.");
    }
    if (number !== this.number) return;
    for (const id of this.states.keys()) this.draw(id);
    const busy = [...this.states.values()].some((state) => state.standing === "playing" || state.reading);
    const wait = this.failures ? Math.min(this.every * 2 ** this.failures, LONGEST_WAIT) : busy && !document.hidden ? this.every : 4 * this.every;
    this.timer = setTimeout(() => this.ask(), wait);
  }

  async take(state) {
    const before = this.states.get(state.run_id);
    this.states.set(state.run_id, state);
    if (before && before.standing !== state.standing) announce(`${state.run_id}: ${STATE_NAMES[state.standing] ?? state.standing}`);
    const run = site.runs.get(state.run_id);
    if (run) {
      if (state.generation !== run.about.generation) return this.reloadWhenSafe("The games were read again from the start.");
      if (state.games.count > run.about.count) await loadNewGames(run, state.games);
      await this.loadNewNotes(run, state.notes);
    }
    const rendered = run?.about.state; // the state at the time when the page was rendered
    if (!rendered || state.reading || state.standing === "playing") return;
    if (rendered.standing !== state.standing) this.reloadWhenSafe("The run has ended.");
    else if (rendered.games.count !== state.games.count) this.reloadWhenSafe("All games have been read.");
  }

  // Load notes that somebody else has added to the run.
  async loadNewNotes(run, version) {
    const before = this.notes.get(run);
    this.notes.set(run, version);
    if (before === undefined || before === version || !run.reading) return;
    await run.notes.open();
    if (run.openList) redrawList(run.list);
  }

  // Reload the page, immediately if no unsaved text would be lost, otherwise when the user asks for it.
  reloadWhenSafe(why) {
    const typed = [...document.querySelectorAll("textarea, section.notes input")].some((field) => field.value.trim() !== "");
    if (!typed && !document.hidden) {
      const scrolled = document.querySelector("#view:not([hidden]) div.scrolled");
      if (scrolled) history.replaceState({ top: scrolled.scrollTop }, "");
      location.reload();
      return;
    }
    this.why = why;
  }

  draw(id) {
    const section = [...document.querySelectorAll("section.page[data-route]")].find((candidate) => candidate.dataset.route === `run/${id}`);
    if (!section) return;
    let panel = this.panels.get(id);
    if (!panel) {
      panel = el("section", { class: "live", "aria-label": "State of the run" });
      this.panels.set(id, panel);
      section.prepend(panel);
    }
    const state = this.states.get(id);
    const open = panel.querySelector("details")?.open ?? true;
    replaceContent(panel,
      el("p", { class: `standing ${state.standing}` }, el("b", {}, STATE_NAMES[state.standing] ?? state.standing), state.why ? `: ${state.why}` : null),
      this.lost ? el("p", { class: "why" }, `The server has not answered since ${this.lost.toLocaleTimeString()}; this is its last known state. Start it again with nip-run view ${id}, and open the address that it prints.`) : null,
      this.why ? el("p", {}, `${this.why} `, el("button", { type: "button", onclick: () => location.reload() }, "Reload")) : null,
      state.problem ? el("p", { class: "why" }, state.problem) : null,
      state.total === undefined ? el("p", { class: "soft" }, this.describeWithoutGames(id, state)) : this.progress(state, open));
  }

  // Describe a run without games, or without games so far.
  describeWithoutGames(id, state) {
    const part = [...this.states.values()].find((candidate) => candidate.standing === "playing" && candidate.run_id.startsWith(`${id}-`));
    if (part?.total) return `Now ${part.run_id}: ${inThousands(part.done)} of ${inThousands(part.total)} ${part.of}`;
    return state.standing === "playing" ? "No answers yet." : "This run has no games of its own.";
  }

  progress(state, open) {
    const left = state.seconds_left === null ? null : `${formatDuration(state.seconds_left)} left`;
    const rate = state.per_second ? (state.per_second >= 1 ? `${state.per_second.toFixed(1)} a second` : `${(state.per_second * 60).toFixed(1)} a minute`) : null;
    const countInPage = site.runs.get(state.run_id)?.about.state?.games.count; // the number of games in the tables below
    const facts = [
      ["Calls", inThousands(state.calls)], state.failed_calls ? ["Failed calls", inThousands(state.failed_calls)] : null,
      ["Tokens", `${inThousands(state.prompt_tokens)} sent, ${inThousands(state.completion_tokens)} answered`],
      ["Cost", state.cost_usd === null ? "not known" : `$${state.cost_usd.toFixed(state.cost_usd < 1 ? 4 : 2)}`],
      state.judged ? ["Accuracy so far", `${formatNumber(state.right / state.judged, 3)} of ${inThousands(state.judged)}`] : null,
      ...Object.entries(state.outcomes).map(([name, count]) => [capitalised(name.replaceAll("_", " ")), inThousands(count)]),
    ].filter(Boolean);
    return [
      el("progress", { max: state.total, value: state.done, "aria-label": "Finished games" }),
      el("p", {}, [`${inThousands(state.done)} of ${inThousands(state.total)} ${state.of}`, rate, left, state.reading ? "still being read" : null].filter(Boolean).join(" · ")),
      state.standing === "done" ? null : el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      countInPage !== undefined && countInPage < state.games.count ? el("p", { class: "soft" }, `The numbers below include ${inThousands(countInPage)} games. `,
        el("button", { type: "button", onclick: () => location.reload() }, "Update them")) : null,
      state.errors.length && state.standing !== "done" ? el("details", { open }, el("summary", {}, "Last errors"),
        el("ul", {}, state.errors.map((error) => el("li", {}, error.text, error.count > 1 ? ` (${inThousands(error.count)} times)` : null)))) : null,
    ];
  }
}

const capitalised = (words) => words.charAt(0).toUpperCase() + words.slice(1);

// Load new games of a run, and the last pieces again, since they have grown.
async function loadNewGames(run, about) {
  run.games.extend(about);
  if (!run.reading) return; // the list has not been opened yet
  run.reading = run.reading.then(() => run.games.read(() => redrawList(run.list)));
  await run.reading;
}

// Redraw the list with new games, and keep its position, filters and focus.
async function redrawList(list) {
  const focused = list.body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const top = list.view.scrollTop;
  await list.apply();
  list.view.scrollTop = top;
  if (focused === null) return;
  [...list.body.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

function inThousands(number) {
  return number.toLocaleString("en");
}

function formatDuration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
