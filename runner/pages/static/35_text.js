// Texts: long ones are cut until the user expands them, code is highlighted, and log-probabilities are tables.

const LONG = 12000; // characters that are shown of a text that is at least twice as long

// Show a text, or its start with a button for the rest.
function textBlock(text, draw = (part) => el("div", { class: "text" }, part)) {
  if (text.length <= 2 * LONG) return draw(text);
  const made = el("div", { class: "long" });
  const end = text.codePointAt(LONG - 1) > 0xffff ? LONG - 1 : LONG; // no character is cut in two
  const button = el("button", { type: "button", onclick: () => { replaced(made, draw(text)); made.tabIndex = -1; made.focus(); } }, `Show all ${count(text.length)} characters`);
  replaced(made, draw(text.slice(0, end)), button);
  return made;
}

function said(text) {
  return text.trim() ? textBlock(text) : el("div", { class: "text" }, el("em", {}, "(empty)"));
}

// Create the content when it is opened for the first time; most chats never are.
function folded(kind, title, make) {
  const made = el("details", { class: kind }, el("summary", {}, title));
  made.addEventListener("toggle", () => { if (made.open && made.childElementCount === 1) add(made, [make()]); });
  return made;
}

const CODE = /^\s*(?:def |class |import |from \w+ import |#include|int main|function |const |let |public class|for \(|while \()/m;
const COLOURED = 60000; // characters; longer texts are not highlighted

function looksLikeCode(text) {
  return text.includes("\n") && CODE.test(text.slice(0, 4000));
}

// The length of literals is limited: in a text of only quotes, the end of each one would be searched for.
const TOKENS = /(#[^\n]*|\/\/[^\n]*)|("(?:[^"\\\n]|\\.){0,1000}"|'(?:[^'\\\n]|\\.){0,1000}')|\b(and|as|assert|async|await|break|case|catch|class|const|continue|def|del|do|elif|else|except|finally|for|from|function|global|if|import|in|int|is|lambda|let|new|not|or|pass|raise|return|static|throw|try|void|while|with|yield|None|True|False|null|true|false)\b|\b(\d[\d_.eExXa-fA-F]*)\b/g;

function highlighted(text) {
  const code = el("code");
  let end = 0;
  for (const found of text.length > COLOURED ? [] : text.matchAll(TOKENS)) {
    if (found.index > end) add(code, [text.slice(end, found.index)]);
    const kind = found[1] ? "comment" : found[2] ? "string" : found[3] ? "keyword" : "figure";
    code.append(el("span", { class: kind }, found[0]));
    end = found.index + found[0].length;
  }
  add(code, [text.slice(end)]);
  return el("pre", { class: "code", tabindex: "0" }, code);
}

function columnBlock(text) {
  return looksLikeCode(text) ? textBlock(text, highlighted) : said(text);
}

// Show the tokens of a verdict, each with its probability and the alternatives.
function logprobsTable(tokens) {
  const share = (logprob) => (typeof logprob === "number" ? Math.exp(logprob).toFixed(4) : "–");
  return el("table", { class: "tokens" },
    el("caption", {}, "Tokens of the verdict, and the most likely alternatives"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Token"), el("th", { scope: "col", class: "number" }, "Log-probability"), el("th", { scope: "col", class: "number" }, "Probability"), el("th", { scope: "col" }, "Alternatives"))),
    el("tbody", {}, tokens.map((one) => el("tr", {},
      el("td", {}, el("code", {}, JSON.stringify(one.token))),
      el("td", { class: "number" }, typeof one.logprob === "number" ? one.logprob.toFixed(3) : "–"),
      el("td", { class: "number" }, share(one.logprob)),
      el("td", {}, Object.entries(one.top ?? {}).map(([token, logprob]) => el("span", { class: "alternative" }, el("code", {}, JSON.stringify(token)), ` ${share(logprob)}`)))))));
}

function copyButton(text, word) {
  const button = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      prompt(word, text()); // a page opened from disk may not write to the clipboard
    }
    setTimeout(() => { button.textContent = word; }, 1500);
  } }, word);
  return button;
}
