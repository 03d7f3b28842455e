// The only functions that create elements: untrusted content becomes text, never markup.

const NAMED = new Map([
  ["\u001b", "ESC"], ["\u0000", "NUL"], ["\u007f", "DEL"], ["\u200b", "ZWSP"], ["\u200c", "ZWNJ"], ["\u200d", "ZWJ"],
  ["\u200e", "LRM"], ["\u200f", "RLM"], ["\u202a", "LRE"], ["\u202b", "RLE"], ["\u202c", "PDF"], ["\u202d", "LRO"],
  ["\u202e", "RLO"], ["\u2066", "LRI"], ["\u2067", "RLI"], ["\u2068", "FSI"], ["\u2069", "PDI"], ["\ufeff", "BOM"],
  ["\u00ad", "SHY"],
]);

// Controls, formats, surrogates, private and unassigned characters, line and paragraph separators; not tab and newline.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

const TOLD = new Set(["title", "aria-label"]); // attributes that users read or hear

// A number as Python rounds it (runner/base/text.py): exact ties go to the even digit, and there is no `-0.000`.
function rounded(value, places) {
  const exact = value.toFixed(places + 60), end = exact.length - 60;
  const isDown = /^50*$/.test(exact.slice(end)) && "02468".includes(exact[end - 1]);
  const shown = isDown ? exact.slice(0, end) : value.toFixed(places);
  return Number(shown) === 0 ? shown.replace("-", "") : shown;
}

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (TOLD.has(name)) made.setAttribute(name, plain(String(value)));
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) parent.append(child);
    else parent.append(...shown(String(child)));
  }
}

// Convert a text to nodes; invisible characters, and those that change the text direction, become marks with their names.
function shown(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > end) nodes.push(document.createTextNode(text.slice(end, found.index)));
    nodes.push(mark(found[0]));
    end = found.index + found[0].length;
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
  const made = document.createElement("span");
  made.className = "hidden-character";
  const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  made.textContent = NAMED.get(character) ?? `U+${code}`;
  made.title = `character U+${code}`;
  return made;
}

function replaced(parent, ...children) {
  parent.replaceChildren();
  add(parent, children);
}

function announce(text) {
  const place = document.getElementById("announced");
  if (place) place.textContent = plain(text);
}
