// Asks for a person's name, then shows one question after another with its form. All keys work without a mouse.

const WAIT_MS = 1_500; // between two requests for a question while there is none
const SHOWN_MS = 15_000; // between two requests while a question is shown, so that it stays with this person
const part = (id) => document.getElementById(id);
/** @type {any} */
const answerForm = part("answer-form");
const nameForm = part("name-form"), chat = part("chat"), problem = part("problem");

let person = null;
let question = null;
let answered = 0;
let isBusy = false;
let timer = null;

async function post(name, data) {
  const response = await fetch(name, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ person, ...data }),
  });
  const result = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(result.error ?? `the server answered ${response.status}`), { isRefused: response.status === 400 });
  return result;
}

function say(text) {
  if (part("status").textContent !== text) replaceContent(part("status"), text);
}

// Ask the server for this person's question. It returns the same question until it is answered.
async function takeQuestion() {
  clearTimeout(timer);
  try {
    show(await post("take", {}));
  } catch (error) {
    showError(error);
  }
}

function showError(error) {
  if (error.isRefused && question) {
    replaceContent(problem, `Not submitted: ${error.message}`);
  } else if (error.isRefused) { // the name
    person = null;
    nameForm.hidden = false;
    say(error.message);
    return;
  } else {
    const message = error instanceof TypeError ? "The command does not answer: it has ended, or was stopped." : `Not saved: ${error.message}.`;
    say(`${message} If it goes on, open its new page.`);
  }
  timer = setTimeout(takeQuestion, question ? SHOWN_MS : WAIT_MS);
}

function show(state, wasSubmitted = false) {
  const next = state.question, isLabeling = state.total !== undefined; // each reader labels the same units
  const wasLost = question && !wasSubmitted && !isLabeling && next?.id !== question.id;
  if (next?.id !== question?.id) {
    question = next;
    chat.hidden = answerForm.hidden = !next;
    replaceContent(problem, "");
    if (next) showQuestion();
  }
  part("undo").hidden = !state.labeled;
  if (isLabeling) {
    const end = next ? "" : " You have labeled all units and can close this page.";
    say(`${state.labeled} of ${state.total} labeled.${end}`);
    timer = setTimeout(takeQuestion, SHOWN_MS);
    return;
  }
  const lost = wasLost ? "Your question was given to another person while this page was away. " : "";
  const done = lost + (answered === 1 ? "1 answer submitted" : `${answered} answers submitted`);
  if (state.has_ended) {
    say(`Thank you. There are no more questions: the run has ended or was stopped. ${done}.`);
    person = null;
    return;
  }
  const others = state.others === 1 ? "1 question waits" : `${state.others} questions wait`;
  if (next) say(`${done}. ${state.others ? `${others} after this one.` : ""}`);
  else say(`${done}. There is no question for you now. ${state.others ? `${others} for other people.` : "This page shows the next one as soon as it comes."}`);
  timer = setTimeout(takeQuestion, next ? SHOWN_MS : WAIT_MS);
}

function showQuestion() {
  replaceContent(chat, question.messages.map((message) => el("div", { class: "turn" },
    el("h2", {}, message.name ? `${message.name} (${message.role})` : message.role ?? ""), el("div", { class: "text" }, message.content))));
  replaceContent(part("fields"), question.fields.map(fieldOf));
  const choice = question.fields.find((field) => field.kind === "choice");
  replaceContent(part("keys"), "Ctrl+Enter submits.", choice ? ` Outside of text fields, the keys 1 to ${Math.min(choice.options.length, 9)} select and submit.` : "");
  restoreDraft();
  const first = question.fields.find((field) => field.required) ?? question.fields[0];
  inputsOf(first)[0].focus({ preventScroll: true });
  window.scrollTo(0, 0);
  chat.scrollTop = chat.lastElementChild ? chat.lastElementChild.offsetTop - chat.offsetTop : 0;
}

function fieldOf(field) {
  const id = `field-${field.name}`;
  if (field.kind === "choice") {
    return el("fieldset", {}, el("legend", {}, field.label), field.options.map((option, index) =>
      el("label", {}, el("input", { type: "radio", name: field.name, value: option }), `${index + 1}. ${option}`)));
  }
  const input = field.kind === "text" ? el("textarea", { id, name: field.name, rows: "5" }) : el("input", { id, name: field.name, type: "text", autocomplete: "off" });
  return el("div", { class: "field" }, el("label", { for: id }, field.label), input);
}

function inputsOf(field) {
  return [...answerForm.querySelectorAll("textarea, input")].filter((input) => input.name === field.name);
}

function valuesOf() {
  return Object.fromEntries(new FormData(answerForm));
}

// The draft of an answer survives a reload of the page.
const draftKey = () => `draft ${question.id}`;

function restoreDraft() {
  const values = JSON.parse(sessionStorage.getItem(draftKey()) ?? "{}");
  for (const field of question.fields) {
    for (const input of inputsOf(field)) {
      if (input.type === "radio") input.checked = input.value === (values[field.name] ?? field.default);
      else input.value = values[field.name] ?? field.default;
    }
  }
}

async function send(name, data) {
  if (isBusy) return;
  isBusy = true;
  clearTimeout(timer);
  replaceContent(problem, "");
  try {
    const key = question && draftKey();
    const state = await post(name, data);
    if (key) sessionStorage.removeItem(key);
    if (name === "answer") answered += 1;
    show(state, true);
  } catch (error) {
    showError(error);
  }
  isBusy = false;
}

const submit = () => question && send("answer", { question: question.id, values: valuesOf() });

// Take back the previous label, whose question comes again.
const undo = () => part("undo").hidden || send("undo", {});

// A number key selects an option. It also submits, unless a number or a line below the options is still empty.
function choose(number) {
  const field = question?.fields.find((other) => other.kind === "choice");
  const input = field && inputsOf(field)[number - 1];
  if (!input) return false;
  input.checked = true;
  sessionStorage.setItem(draftKey(), JSON.stringify(valuesOf()));
  const empty = question.fields.filter((other) => other.kind === "line").flatMap(inputsOf).find((line) => !line.value);
  if (empty) empty.focus();
  else submit();
  return true;
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLTextAreaElement || (event.target instanceof HTMLInputElement && event.target.type === "text");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    submit();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key.toLowerCase() === "u") undo();
  else if (/^[1-9]$/.test(event.key) && choose(Number(event.key))) event.preventDefault();
});
answerForm.addEventListener("input", () => sessionStorage.setItem(draftKey(), JSON.stringify(valuesOf())));
part("undo").addEventListener("click", undo);
answerForm.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
nameForm.addEventListener("submit", (event) => {
  event.preventDefault();
  start(part("name").value.trim());
});
window.addEventListener("pagehide", () => {
  if (person) navigator.sendBeacon("leave", new Blob([JSON.stringify({ person })], { type: "application/json" }));
});

function start(name) {
  person = name;
  sessionStorage.setItem("person", name);
  nameForm.hidden = true;
  takeQuestion();
}

if (sessionStorage.getItem("person")) start(sessionStorage.getItem("person"));
else part("name").focus();
