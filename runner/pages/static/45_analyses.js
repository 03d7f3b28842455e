// The answers of analyses about a game: all in a list, and those about one message below it, with parts of it marked.

class Analyses {
  constructor(about) {
    this.about = about;
    this.games = {};
    this.problem = null;
    this.reading = null;
  }

  // Load the answers once; a run without analyses has no piece.
  open() {
    this.reading ??= this.about.analyses ? loadPiece(`${this.about.slug}-analyses`).then(
      (games) => { this.games = games; },
      (error) => { this.problem = `The analyses of the run cannot be read: ${error.message}`; },
    ) : Promise.resolve();
    return this.reading;
  }

  of(id) {
    return Object.hasOwn(this.games, id) ? this.games[id] : [];
  }

  // Return the answers about one message: those about the message as a unit, and those that mark a part of it.
  ofMessage(id, agent, channel, round) {
    const isHere = (place) => place.agent === agent && place.channel === channel && place.round === round;
    return this.of(id).filter((answer) => isHere(answer) || answer.spans.some(isHere))
      .map((answer) => ({ ...answer, spans: answer.spans.filter(isHere) }));
  }

  panel(id) {
    const answers = this.of(id);
    if (!answers.length && !this.problem) return null;
    return el("section", { class: "analyses" }, el("h3", {}, "Analyses"), this.problem ? el("p", { class: "soft" }, this.problem) : null,
      answers.map((answer) => analysisAnswer(answer, [answer.agent, answer.channel, answer.round === null ? null : `round ${answer.round}`])));
  }
}

function analysisAnswer({ analyzer, answer, status, reason, model }, place = []) {
  const where = place.filter((part) => part !== null).join(", ");
  return el("p", { class: "analysis" }, el("span", { class: "badge" }, `${analyzer}: ${answer ?? status.replaceAll("_", " ")}`),
    where ? el("span", { class: "soft" }, ` ${where}`) : null, reason ? ` ${reason}` : null, model ? el("span", { class: "soft" }, ` (${model})`) : null);
}

// Show a message; the parts that answers are about are marked. Spans count characters, JavaScript counts UTF-16 units.
function analyzedText(text, answers) {
  const spans = answers.flatMap((answer) => answer.spans.map((span) => ({ ...span, title: `${answer.analyzer}: ${answer.answer}` })));
  if (!spans.length) return textOrEmpty(text);
  return textBlock(text, (part) => el("div", { class: "text" }, markSpans([...part], spans)));
}

function markSpans(characters, spans) {
  const parts = [];
  let end = 0;
  for (const { start, end: stop, title } of spans.toSorted((a, b) => a.start - b.start)) {
    const [first, last] = [Math.max(start, end), Math.min(stop, characters.length)];
    if (first >= last) continue;
    parts.push(characters.slice(end, first).join(""), el("mark", { title }, characters.slice(first, last).join("")));
    end = last;
  }
  return [...parts, characters.slice(end).join("")];
}
