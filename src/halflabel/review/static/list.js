// The list of questions: its filters, how far it is, what the random checks say, and its end.
import { $, el, none, thisTurn, view } from "/screen.js";
import { tab } from "/tab.js";
import { call, reason, tell, unsent } from "/talk.js";

let labels = []; // all classes
let progress = null; // what the server last said

// ---- what is asked for

export const seen = new Set(); // entries shown since the filters last changed

function filters() {
  const [low, high] = $("filter-confidence").value.split("-").map(Number);
  return { label: $("filter-class").value, state: $("filter-state").value, low, high };
}

/** Up to `count` questions that these filters let through, except the entries `shown`. */
export async function ask(count, shown, more = {}) {
  const skip = [...new Set([...shown, ...unsent(), ...[...seen].slice(-1500)])];
  return (await call("/api/next", { tab, count, skip, ...more, ...filters() })).json();
}

export function release(questions) {
  const entries = questions.map((question) => question.entry);
  if (entries.length) call("/api/release", { tab, entries }).catch(() => {}); // else they come free after a while
}

// ---- progress and what the random checks say

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
// A chance is never certain: what would round to 0 or 100 says so.
const chance = (p) => (p < 0.005 ? "<\u00a01\u00a0%" : p > 0.995 ? ">\u00a099\u00a0%" : percent(p));
const atMost = (p) => `${Math.ceil(100 * p)}\u00a0%`;

/** What the server has said last, or the same again where another view or filter is on. */
export function showProgress(state = progress) {
  if (!state) return;
  $("progress").max = state.questions || 1;
  $("progress").value = state.answered;
  $("count").textContent = `${state.answered} of ${state.questions}`;
  const { precision, missed } = state.estimate;
  fillShare($("precision"), precision, "of what the model calls present is there",
    `${precision.part} of ${precision.of} random checks`);
  fillShare($("missed"), missed, "of what the model calls absent is there all the same",
    `${missed.part} of ${missed.of} random checks`);
  const open = precision.asked - precision.of - precision.unsure + missed.asked - missed.of - missed.unsure;
  const unsure = precision.unsure + missed.unsure;
  const parts = [];
  if (!precision.asked && !missed.asked) parts.push("This list has no random checks, so nothing can be said without bias.");
  else {
    const none = !precision.of && !missed.of;
    if (none) parts.push("Your answers will tell.");
    parts.push("Only those to random checks count; they come first, one by one, without filters.");
    if (open > 0) parts.push(`Still to be asked: ${open}.`);
    if (unsure) parts.push(`Unsure, left out: ${unsure}.`);
    if (!none) parts.push("Intervals: 95 %.");
  }
  $("basis").textContent = parts.join(" ");
  if (state.labels) labels = state.labels;
  offerClasses(state.classes);
  progress = state;
}

function fillShare(place, share, text, basis) {
  place.hidden = !share.of;
  if (!share.of) return;
  place.replaceChildren(
    el("strong", {}, percent(share.share)),
    ` ${text}: ${basis}, ${percent(share.low)} to ${percent(share.high)}`,
  );
}

function offerClasses(rows) {
  if (document.activeElement === $("filter-class")) return; // being chosen from
  const { label, state, low, high } = filters();
  const any = low <= 0 && high >= 1; // how many of a class have a certain chance is not known here
  const names = view === "one" || view === "grid"
    ? rows.map((row) => [row.name, any ? `${row.name} (${fitting(row, state)})` : row.name])
    : labels.map((name) => [name, name]);
  const options = names.map(([name, title]) => el("option", { value: name }, title));
  $("filter-class").replaceChildren(el("option", { value: "" }, "all classes"), ...options);
  $("filter-class").value = names.some(([name]) => name === label) ? label : "";
}

/** How many questions of a class there are to be shown in a state: open random checks are not, where a filter is on. */
function fitting(row, state) {
  return state === "answered" ? row.present + row.absent + row.unsure : row[state];
}

export function opinion(question) {
  const score = `score ${question.score === null ? "—" : question.score.toFixed(2)}`;
  if (question.probability === null || question.label) return score;
  // Where known labels are a fair sample, the score is the chance: one number is enough.
  return progress?.fair ? `chance ${chance(question.probability)}` : `chance up to ${atMost(question.probability)}, ${score}`;
}

// ---- where there is nothing to show

/** Nothing can be shown until the server answers again; it is asked again meanwhile. */
export function stalled(error) {
  none("Waiting for the server", `${reason(error)} It is asked again by itself; what you have answered is kept here.`);
}

/** Nothing can be shown, and asking again is of no use. */
export function stopped(error) {
  tell(error);
  none("The questions cannot be shown", reason(error));
}

const stillOpen = () => (progress ? progress.questions - progress.answered : 0);
const pause = (time) => new Promise((done) => { setTimeout(done, time); });
const askAgain = () => $("filters").dispatchEvent(new Event("change"));

export async function finished() {
  const any = filters();
  const narrowed = any.label || any.state !== "open" || any.low > 0 || any.high < 1;
  if (narrowed) {
    return none("No question fits these filters", "Choose others above, or look through the galleries.",
      "Clear the filters", () => { $("filters").reset(); askAgain(); });
  }
  const mine = thisTurn();
  for (let waited = 0; unsent().length; waited += 30) { // only then is it known how many are left
    if (waited === 300) none("Saving your answers", "They are kept in this browser until the server has them.");
    await pause(30);
    if (!mine()) return;
  }
  let left = stillOpen();
  if (left > 0) { // or another page has answered them since
    await call("/api/state").then(async (reply) => showProgress(await reply.json())).catch(() => {});
    if (!mine()) return;
    left = stillOpen();
  }
  if (left > 0 && view === "one") {
    return none(left === 1 ? "The last question is taken" : `The last ${left} questions are taken`,
      "Another page shows them. They come free a minute and a half after it is closed.", "Look again", askAgain);
  }
  if (left > 0) {
    return none("No photos for the grid", `Still open: ${left}. They are random checks, asked one by one, or cannot be shown, or another page has them.`,
      "One by one", () => document.querySelector('nav [data-view="one"]').click());
  }
  none("All questions are answered",
    "Thank you. In the terminal: halflabel review RUN --export all.csv --with-labels, then train on all.csv. "
      + "Undo still works here, and the galleries have more.");
}
