// The list of questions: filters, progress, estimates from the random checks, and messages when it is empty.
import { $, currentTurn, el, showMessage, view } from "/screen.js";
import { tab } from "/tab.js";
import { call, reason, reportTrouble, unsent } from "/connection.js";

let labels = []; // all classes
let progress = null; // the last progress from the server
let isLive = false; // whether the model learns meanwhile

// ---- fetching questions

export const shownEntries = new Set(); // since the filters last changed

function filters() {
  return { label: $("filter-class").value, state: $("filter-state").value };
}

/** Fetch up to `count` questions that match the filters, except the entries `excluded`. */
export async function fetchQuestions(count, excluded, options = {}) {
  const skip = [...new Set([...excluded, ...unsent(), ...[...shownEntries].slice(-1500)])];
  return (await call("/api/questions", { tab, count, skip, ...filters(), ...options })).json();
}

export function release(questions) {
  const entries = questions.map((question) => question.entry);
  if (entries.length) call("/api/release", { tab, entries }).catch(() => {}); // otherwise the reservation ends after a while
}

// ---- progress and estimates

const ENOUGH = 20; // random checks from which on an estimate is shown
const KINDS = [
  ["precision", "what the model calls present"],
  ["missed", "what the model calls absent"],
  ["fillable", "what could be filled in"],
];

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
// A probability is never certain: it is not rounded to 0 or 100 %.
const formatChance = (p) => (p < 0.005 ? "<\u00a01\u00a0%" : p > 0.995 ? ">\u00a099\u00a0%" : percent(p));

/** Show the progress from the server, or the last one again after a change of view or filter. */
export function showProgress(state = progress) {
  if (!state) return;
  $("progress").max = state.questions || 1;
  $("progress").value = state.answered;
  isLive = Boolean(state.live);
  const total = state.values.present + state.values.absent + state.values.unsure;
  $("count").textContent = isLive ? `${total} ${total === 1 ? "answer" : "answers"}` : `${state.answered} of ${state.questions}`;
  $("progress").hidden = isLive;
  const checks = KINDS.filter(([kind]) => state.estimate[kind].asked).map(([kind, what]) => ({ what, ...state.estimate[kind] }));
  for (const [kind, what] of KINDS) showEstimate($(kind), state.estimate[kind], `of ${what} is present`);
  const sum = (key) => checks.reduce((total, check) => total + check[key], 0);
  const open = sum("asked") - sum("total") - sum("unsure");
  const unsure = sum("unsure");
  const parts = [];
  if (!checks.length) parts.push("This list has no random checks, so there is no unbiased estimate.");
  else {
    const isEmpty = checks.every((check) => check.total < ENOUGH);
    const sofar = checks.map((check) => `${check.total} of ${check.what}`).join(", ");
    if (isEmpty) parts.push(`Your answers will show it: after ${ENOUGH} random checks${checks.length > 1 ? " of a kind" : ""}; so far ${sofar}.`);
    parts.push("Only answers to random checks count; these questions come first, one by one, while no filter is set.");
    if (open > 0) parts.push(`Still open: ${open}.`);
    if (unsure) parts.push(`Unsure, not counted: ${unsure}.`);
    if (!isEmpty) parts.push("Intervals: 95 %.");
  }
  if (state.assumption) parts.push(`Chances assume that ${state.assumption}.`);
  $("basis").textContent = parts.join(" ");
  if (state.labels) labels = state.labels;
  updateClassFilter(state.classes);
  progress = state;
}

function showEstimate(place, share, text) {
  place.hidden = share.total < ENOUGH;
  if (place.hidden) return;
  place.replaceChildren(
    el("strong", {}, percent(share.share)),
    ` ${text}: ${share.part} of ${share.total} random checks, ${percent(share.low)} to ${percent(share.high)}`,
  );
}

function updateClassFilter(rows) {
  if (document.activeElement === $("filter-class")) return; // the user is choosing
  const { label, state } = filters();
  const counts = new Map(rows.map((row) => [row.name, countInState(row, state)]));
  const shown = view === "one" ? labels.filter((name) => name === label || counts.get(name)) : labels;
  const names = shown.map((name) => [name, view === "one" || view === "grid" ? `${name} (${counts.get(name) ?? 0})` : name]);
  const options = names.map(([name, title]) => el("option", { value: name }, title));
  $("filter-class").replaceChildren(el("option", { value: "" }, "all classes"), ...options);
  $("filter-class").value = names.some(([name]) => name === label) ? label : "";
}

/** The number of questions of a class in a state; open random checks are hidden while a filter is set. */
function countInState(row, state) {
  return state === "answered" ? row.present + row.absent + row.unsure : row[state];
}

export function modelOpinion(question) {
  const score = `score ${question.score === null ? "—" : question.score.toFixed(2)}`;
  return question.probability === null || question.label ? score : `chance ${formatChance(question.probability)}`;
}

// ---- messages when there is nothing to show

/** The server does not answer; the request is being repeated. */
export function showWaiting(error) {
  showMessage("Waiting for the server", `${reason(error)} The page tries again by itself; your answers are kept here.`);
}

/** Nothing can be shown, and repeating the request would not help. */
export function showStopped(error) {
  reportTrouble(error);
  showMessage("The questions cannot be shown", reason(error));
}

const openCount = () => (progress ? progress.questions - progress.answered : 0);
const sleep = (time) => new Promise((done) => { setTimeout(done, time); });
const fetchAgain = () => $("filters").dispatchEvent(new Event("change"));

export async function showFinished() {
  const { label, state } = filters();
  if (label || state !== "open") {
    return showMessage("No question matches these filters", "Choose others above.",
      "Clear the filters", () => { $("filters").reset(); fetchAgain(); });
  }
  if (isLive && !openCount()) return showMessage("One moment", "The model looks at all photos and chooses the questions.");
  const isCurrent = currentTurn();
  for (let waited = 0; unsent().length; waited += 30) { // only then the number of open questions is known
    if (waited === 300) showMessage("Saving your answers", "They are kept in this browser until the server has them.");
    await sleep(30);
    if (!isCurrent()) return;
  }
  let left = openCount();
  if (left > 0 || !progress) { // another page may have answered them since, or the first state has not arrived
    await call("/api/state").then(async (reply) => showProgress(await reply.json())).catch(() => {});
    if (!isCurrent()) return;
    left = openCount();
  }
  if (left > 0 && view === "one") {
    return showMessage(left === 1 ? "The last question is taken" : `The last ${left} questions are taken`,
      "Another page shows them. They become available a minute and a half after it is closed.", "Look again", fetchAgain);
  }
  if (left > 0) {
    return showMessage("No photos for the grid", `Still open: ${left}. They are random checks, which are asked one by one, or their photos cannot be shown, or another page has them.`,
      "One by one", () => document.querySelector('nav [data-view="one"]').click());
  }
  showMessage("All questions are answered",
    `Thank you. Next, in the terminal: ${progress?.next ?? "halflabel review --help"} (Undo still works here, and the grid has more.)`);
}
