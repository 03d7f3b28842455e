// The only functions that create elements: untrusted content becomes text, never markup.

const CHARACTER_NAMES = new Map([
  ["\u001b", "ESC"], ["\u0000", "NUL"], ["\u007f", "DEL"], ["\u200b", "ZWSP"], ["\u200c", "ZWNJ"], ["\u200d", "ZWJ"],
  ["\u200e", "LRM"], ["\u200f", "RLM"], ["\u202a", "LRE"], ["\u202b", "RLE"], ["\u202c", "PDF"], ["\u202d", "LRO"],
  ["\u202e", "RLO"], ["\u2066", "LRI"], ["\u2067", "RLI"], ["\u2068", "FSI"], ["\u2069", "PDI"], ["\ufeff", "BOM"],
  ["\u00ad", "SHY"],
]);

// Controls, formats, surrogates, private and unassigned characters, line and paragraph separators; not tab and newline.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

const TEXT_ATTRIBUTES = new Set(["title", "aria-label"]); // attributes whose text users read or hear

// A number as Python rounds it (runner/base/text.py): exact ties go to the even digit, and there is no `-0.000`.
function formatNumber(value, places) {
  const exact = value.toFixed(places + 60), cut = exact.length - 60;
  const isDown = /^50*$/.test(exact.slice(cut)) && "02468".includes(exact[cut - 1]);
  const text = isDown ? exact.slice(0, cut) : value.toFixed(places);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (TEXT_ATTRIBUTES.has(name)) element.setAttribute(name, plain(String(value)));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) parent.append(child);
    else parent.append(...toNodes(String(child)));
  }
}

// Convert a text to nodes; invisible characters, and those that change the text direction, become marks with their names.
function toNodes(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) nodes.push(document.createTextNode(text.slice(end, match.index)));
    nodes.push(mark(match[0]));
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(document.createTextNode(text.slice(end)));
  return nodes;
}

// Convert a text for an attribute or a title, which cannot contain marks: hidden characters are escaped as in Python.
function plain(text) {
  return text.replace(HIDDEN, escaped).replaceAll("\n", "\\n").replaceAll("\t", "\\t");
}

function escaped(character) {
  const code = character.codePointAt(0);
  const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
}

function mark(character) {
  const element = document.createElement("span");
  element.className = "hidden-character";
  const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  element.textContent = CHARACTER_NAMES.get(character) ?? `U+${code}`;
  element.title = `character U+${code}`;
  return element;
}

function replaceContent(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
}

function announce(text) {
  const element = document.getElementById("announced");
  if (element) element.textContent = plain(text);
}
