// Texts: long texts are cut until the user expands them, code is highlighted, and log-probabilities are in tables.

const LONG = 12000; // characters; of a text more than twice as long, only so many are shown at first

// Show a text, or its start with a button for the rest.
function textBlock(text, draw = (part) => el("div", { class: "text" }, part)) {
  if (text.length <= 2 * LONG) return draw(text);
  const block = el("div", { class: "long" });
  const end = text.codePointAt(LONG - 1) > 0xffff ? LONG - 1 : LONG; // does not split a surrogate pair
  const button = el("button", { type: "button", onclick: () => { replaceContent(block, draw(text)); block.tabIndex = -1; block.focus(); } }, `Show all ${count(text.length)} characters`);
  replaceContent(block, draw(text.slice(0, end)), button);
  return block;
}

function textOrEmpty(text) {
  return text.trim() ? textBlock(text) : el("div", { class: "text" }, el("em", {}, "(empty)"));
}

// Create the content when it is opened for the first time; most chats never are.
function collapsible(kind, title, createContent) {
  const details = el("details", { class: kind }, el("summary", {}, title));
  details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) add(details, [createContent()]); });
  return details;
}

const CODE = /^\s*(?:def |class |import |from \w+ import |#include|int main|function |const |let |public class|for \(|while \()/m;
const MAX_HIGHLIGHTED = 60000; // characters; longer texts are not highlighted

function looksLikeCode(text) {
  return text.includes("\n") && CODE.test(text.slice(0, 4000));
}

// The length of literals is limited: in a text of many quotes, each unlimited search for an end would read to the end of its line.
const TOKENS = /(#[^\n]*|\/\/[^\n]*)|("(?:[^"\\\n]|\\.){0,1000}"|'(?:[^'\\\n]|\\.){0,1000}')|\b(and|as|assert|async|await|break|case|catch|class|const|continue|def|del|do|elif|else|except|finally|for|from|function|global|if|import|in|int|is|lambda|let|new|not|or|pass|raise|return|static|throw|try|void|while|with|yield|None|True|False|null|true|false)\b|\b(\d[\d_.eExXa-fA-F]*)\b/g;

function highlight(text) {
  const code = el("code");
  let end = 0;
  for (const match of text.length > MAX_HIGHLIGHTED ? [] : text.matchAll(TOKENS)) {
    if (match.index > end) add(code, [text.slice(end, match.index)]);
    const kind = match[1] ? "comment" : match[2] ? "string" : match[3] ? "keyword" : "figure";
    code.append(el("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  add(code, [text.slice(end)]);
  return el("pre", { class: "code", tabindex: "0" }, code);
}

function columnBlock(text) {
  return looksLikeCode(text) ? textBlock(text, highlight) : textOrEmpty(text);
}

// Show the tokens of a verdict, each with its probability and the alternatives.
function logprobsTable(tokens) {
  const probability = (logprob) => (typeof logprob === "number" ? Math.exp(logprob).toFixed(4) : "–");
  return el("table", { class: "tokens" },
    el("caption", {}, "Tokens of the verdict, and the most likely alternatives"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Token"), el("th", { scope: "col", class: "number" }, "Log-probability"), el("th", { scope: "col", class: "number" }, "Probability"), el("th", { scope: "col" }, "Alternatives"))),
    el("tbody", {}, tokens.map((token) => el("tr", {},
      el("td", {}, el("code", {}, JSON.stringify(token.token))),
      el("td", { class: "number" }, typeof token.logprob === "number" ? token.logprob.toFixed(3) : "–"),
      el("td", { class: "number" }, probability(token.logprob)),
      el("td", {}, Object.entries(token.top ?? {}).map(([alternative, logprob]) => el("span", { class: "alternative" }, el("code", {}, JSON.stringify(alternative)), ` ${probability(logprob)}`)))))));
}

function copyButton(text, label) {
  const button = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      prompt(label, text()); // a page opened from disk may not write to the clipboard
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  } }, label);
  return button;
}
