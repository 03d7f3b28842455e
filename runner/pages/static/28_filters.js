// Filters and search of the list of games. The address contains all of the user's choices.

const WORDS = { 0: "reject", 1: "accept" };

// The word for a label, a decision or a stance. Letters of listed answers stay as they are.
const verdictWord = (value) => (typeof value === "string" ? value : WORDS[value]);

// Tables whose keys come from the address have no prototype: otherwise `constructor` would be a valid filter.
const FILTERS = {
  __proto__: null,
  wrong: ["Wrong", (games, place) => games.value("correct", place) === false && games.value("decision", place) !== null],
  undecided: ["Undecided", (games, place) => games.value("decision", place) === null],
  right: ["Right", (games, place) => games.value("correct", place) === true],
  retried: ["Retried", (games, place) => games.value("retries", place) > 0],
  failed: ["Failed calls", (games, place) => games.value("failed_calls", place) > 0],
  noted: ["With notes", (games, place, run) => run.notes.of(games.value("id", place)).length > 0],
};

const COMPARISONS = {
  __proto__: null,
  "=": ["is", (value, wanted) => value === wanted],
  "~": ["has", (value, wanted) => value.includes(wanted)],
  ">": ["over", (value, wanted) => Number(value) > Number(wanted)],
  "<": ["under", (value, wanted) => Number(value) < Number(wanted)],
};

// Return a value as the list shows it, in lower case and without separators: "accept", "transport failed", "1.25" seconds.
function shownValue(games, name, place) {
  const value = games.value(name, place);
  if (name === "correct") return resultOf({ correct: value, decision: games.value("decision", place), outcome: games.value("outcome", place) })[0];
  if (value === null) return name === "label" ? "not known" : "none";
  if (name === "outcome") return value.replaceAll("_", " ");
  if (name === "latency_ms") return String(value / 1000);
  if (["label", "decision", "stance"].includes(name)) return verdictWord(value).toLowerCase();
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value).toLowerCase();
}

// Parse conditions on columns from the address: "tokens,>,500;x.level,=,hard".
function conditionsOf(text) {
  return text.split(";").map((condition) => condition.split(",").map(decode)).filter(([name, how, wanted]) => name && how in COMPARISONS && wanted !== undefined);
}

function conditionsText(conditions) {
  return conditions.map((condition) => condition.map(encodeURIComponent).join(",")).join(";");
}

// Return the places of matching rows in order, or null if a newer request has made this one obsolete (`isCurrent`).
async function matchingPlaces(run, state, isCurrent) {
  const games = run.games;
  const tests = state.filters.map((name) => FILTERS[name][1]);
  const conditions = state.where.map(([name, how, value]) => [name, COMPARISONS[how][1], columnNamed(name).number ? value.replaceAll(",", "") : value.toLowerCase()]);
  const words = wordsOf(state.q);
  const byMessages = state.said && words.length ? run.said : null;
  const flips = state.flip ? await flipsOf(run, state.flip) : null;
  const places = [];
  for (let place = 0; place < games.length; place++) {
    if (place % 20000 === 19999) {
      await pause();
      if (!isCurrent()) return null;
    }
    if (tests.length && !tests.some((test) => test(games, place, run))) continue;
    if (conditions.some(([name, test, text]) => !test(shownValue(games, name, place), text))) continue;
    if (flips && !flips.has(games.value("id", place))) continue;
    if (words.length && !(byMessages?.has(place) || hasAllWords(run, place, words))) continue;
    places.push(place);
  }
  return isCurrent() ? places : null;
}

function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

// Whether each word occurs in a text of the row or in a note on the game.
function hasAllWords(run, place, words) {
  run.haystacks ??= [];
  let text = run.haystacks[place];
  if (text === undefined) {
    const parts = [];
    for (const values of run.games.columns.values()) if (typeof values[place] === "string") parts.push(values[place]);
    text = run.haystacks[place] = parts.join("\n").toLowerCase();
  }
  const id = run.games.value("id", place);
  return words.every((word) => text.includes(word) || (run.notes.all.length > 0 && run.notes.mentions(id, word)));
}

// Searches the messages, reasoning and columns of every game, one piece at a time, without storing the pieces.
class MessageSearch {
  constructor(run, query, onProgress) {
    this.about = run.about;
    this.words = wordsOf(query);
    this.onProgress = onProgress;
    this.stopped = false;
    this.found = new Set();
  }

  // Return the places of the games that contain all words.
  async run() {
    const { slug, pieces } = this.about;
    for (let number = 0; number < pieces.length && !this.stopped; number++) {
      const piece = await loadPiece(`${slug}-games-${number}`);
      piece.games.forEach((game, index) => {
        const text = textsOf(game).map((part) => read(piece.texts, part)).join("\n").toLowerCase();
        if (this.words.every((word) => text.includes(word))) this.found.add(piece.first + index);
      });
      if (this.stopped) break;
      this.onProgress(number + 1, pieces.length);
      await pause();
    }
    return this.found;
  }
}

function textsOf(game) {
  const turns = game.turns.flatMap((turn) => [
    ...turn.messages.map((said) => said.text),
    ...turn.answers.flatMap((answer) => [answer.text, answer.reasoning, answer.unusable]),
    ...turn.failed.map((failed) => failed.error),
  ]);
  return [...Object.values(game.columns), ...turns, game.error].filter((text) => text !== undefined && text !== null);
}

// Return a function that compares two places by the value of one column.
function compareBy(values, isDescending) {
  const sign = isDescending ? -1 : 1;
  return (place, other) => {
    const [left, right] = [values[place] ?? null, values[other] ?? null];
    if (left === right) return place - other;
    if (left === null) return 1; // missing values come last in both orders
    if (right === null) return -1;
    return left < right ? -sign : sign;
  };
}
