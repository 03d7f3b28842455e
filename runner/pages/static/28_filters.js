// Filters and search of the list of games. The address contains all of the user's choices.

const WORDS = { 0: "reject", 1: "accept" };

// The word for a label, a decision or a stance. Letters of listed answers stay as they are.
const verdictWord = (value) => (typeof value === "string" ? value : WORDS[value]);

// Tables with names from the address have no prototype, so that `constructor` is not a filter.
const FILTERS = {
  __proto__: null,
  wrong: ["Wrong", (games, place) => games.value("correct", place) === false && games.value("decision", place) !== null],
  undecided: ["Undecided", (games, place) => games.value("decision", place) === null],
  right: ["Right", (games, place) => games.value("correct", place) === true],
  retried: ["Retried", (games, place) => games.value("retries", place) > 0],
  failed: ["Failed calls", (games, place) => games.value("failed_calls", place) > 0],
  noted: ["With notes", (games, place, run) => run.notes.of(games.value("id", place)).length > 0],
};

const COMPARED = {
  __proto__: null,
  "=": ["is", (value, wanted) => value === wanted],
  "~": ["has", (value, wanted) => value.includes(wanted)],
  ">": ["over", (value, wanted) => Number(value) > Number(wanted)],
  "<": ["under", (value, wanted) => Number(value) < Number(wanted)],
};

// Format a value for comparison with the user's input: "accept", "yes", "12".
function plainValue(name, value) {
  if (value === null) return "none";
  if (["label", "decision", "stance"].includes(name)) return verdictWord(value).toLowerCase();
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value).toLowerCase();
}

// Parse conditions on columns from the address: "tokens,>,500;x.level,=,hard".
function conditionsOf(text) {
  return text.split(";").map((one) => one.split(",").map(decoded)).filter(([name, how, wanted]) => name && how in COMPARED && wanted !== undefined);
}

function conditionsText(conditions) {
  return conditions.map((one) => one.map(encodeURIComponent).join(",")).join(";");
}

// Return the places of matching rows in order, or null if `goes` reports that a newer request has replaced this one.
async function filtered(run, state, goes) {
  const games = run.games;
  const tests = state.filters.map((name) => FILTERS[name][1]);
  const conditions = state.where.map(([name, how, wanted]) => [name, COMPARED[how][1], wanted.toLowerCase()]);
  const wanted = wordsOf(state.q);
  const said = state.said && wanted.length ? run.said : null;
  const flips = state.flip ? await flipsOf(run, state.flip) : null;
  const found = [];
  for (let place = 0; place < games.length; place++) {
    if (place % 20000 === 19999) {
      await pause();
      if (!goes()) return null;
    }
    if (tests.length && !tests.some((test) => test(games, place, run))) continue;
    if (conditions.some(([name, test, text]) => !test(plainValue(name, games.value(name, place)), text))) continue;
    if (flips && !flips.has(games.value("id", place))) continue;
    if (wanted.length && !(said?.has(place) || has(run, place, wanted))) continue;
    found.push(place);
  }
  return goes() ? found : null;
}

function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

// Return whether a row has all words, in its own texts or in a note.
function has(run, place, wanted) {
  run.haystacks ??= [];
  let text = run.haystacks[place];
  if (text === undefined) {
    const parts = [];
    for (const values of run.games.columns.values()) if (typeof values[place] === "string") parts.push(values[place]);
    text = run.haystacks[place] = parts.join("\n").toLowerCase();
  }
  const id = run.games.value("id", place);
  return wanted.every((word) => text.includes(word) || (run.notes.all.length > 0 && run.notes.say(id, word)));
}

// Searches the messages, reasoning and columns of every game, one piece at a time, without storing the pieces.
class SaidSearch {
  constructor(run, text, come) {
    Object.assign(this, { run, wanted: wordsOf(text), come, stopped: false, found: new Set() });
  }

  async go() {
    const { slug, pieces } = this.run.about;
    for (let number = 0; number < pieces.length && !this.stopped; number++) {
      const piece = await carried(`${slug}-games-${number}`);
      piece.games.forEach((game, at) => {
        const text = saidIn(game).map((one) => read(piece.texts, one)).join("\n").toLowerCase();
        if (this.wanted.every((word) => text.includes(word))) this.found.add(piece.first + at);
      });
      if (this.stopped) break;
      this.come(number + 1, pieces.length);
      await pause();
    }
    return this.found;
  }
}

function saidIn(game) {
  const turns = game.turns.flatMap((turn) => [
    ...turn.messages.map((said) => said.text),
    ...turn.answers.flatMap((answer) => [answer.text, answer.reasoning, answer.unusable]),
    ...turn.failed.map((failed) => failed.error),
  ]);
  return [...Object.values(game.columns), ...turns, game.error].filter((one) => one !== undefined && one !== null);
}

function compareRow(values, down) {
  const sign = down ? -1 : 1;
  return (one, other) => {
    const [left, right] = [values[one] ?? null, values[other] ?? null];
    if (left === right) return one - other;
    if (left === null) return 1; // missing values come last in both orders
    if (right === null) return -1;
    return left < right ? -sign : sign;
  };
}
