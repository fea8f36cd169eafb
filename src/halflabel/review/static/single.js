// One question at a time; the next questions and photos are fetched in advance.
import { $, ANSWER_WORDS, shorten, el, startTurn, announce, setTitle, showOnly, toggle, view } from "/screen.js";
import { Refused, answer, retry, isReady, largePhoto, loadImage, reason, reviewer } from "/connection.js";
import { fetchQuestions, showFinished, modelOpinion, release, shownEntries, showWaiting, showStopped } from "/questions.js";

const AHEAD = 8; // questions fetched in advance, with their photos

let current = null; // the question shown
let queue = []; // the next questions
let fetching = null; // promise of the request under way
let fetchError = null; // why the request under way has failed so far
let exhausted = false; // no question is left for these filters
let listVersion = 0; // increases when the filters change, so that late replies are recognised
let hasMaps = false;
let showsMap = false;
let showsScore = false;

/** The questions that are reserved for this view. */
export const singleQuestions = () => [...queue, ...(current ? [current] : [])];

/** Whether a question of a late reply was neither answered nor fetched by another request meanwhile. */
const isNew = (question) => !shownEntries.has(question.entry) && !singleQuestions().some((each) => each.entry === question.entry);

export function clearSingle() {
  listVersion += 1;
  fetching = null;
  fetchError = null;
  exhausted = false;
  queue = [];
  current = null;
}

export function restoreSingle(questions) {
  queue.unshift(...questions, ...(current ? [current] : []));
  current = null;
  advance();
}

/** The model was fitted again: replace the questions that nobody has seen yet; the one on the screen stays. */
export async function renewQueue() {
  const version = listVersion;
  if (!current && !queue.length) {
    exhausted = false;
    if (view === "one") advance();
    return;
  }
  try {
    const shown = singleQuestions().map((question) => question.entry);
    const questions = (await fetchQuestions(AHEAD, shown)).questions.filter(isNew);
    await Promise.allSettled(questions.slice(0, 2).map(largePhoto));
    if (version !== listVersion) return release(questions);
    const unanswered = questions.filter(isNew);
    if (!unanswered.length) return;
    release(queue);
    queue = unanswered;
    questions.slice(2).forEach((question) => largePhoto(question).catch(() => {}));
  } catch { /* the questions of the earlier fit are good enough */ }
}

async function prefetch() {
  if (fetching || exhausted) return fetching;
  const version = listVersion;
  const onFailure = (error) => {
    fetchError = error;
    if (!queue.length && !current) showWaiting(error);
  };
  const request = retry(() => fetchQuestions(AHEAD, singleQuestions().map((question) => question.entry)), () => version === listVersion, onFailure)
    .then((reply) => {
      fetchError = null;
      if (version !== listVersion) return reply && release(reply.questions);
      queue.push(...reply.questions.filter(isNew));
      exhausted = reply.questions.length === 0;
      // The first photo is loaded alone, as the user is waiting for it; the others follow.
      const [first, ...rest] = reply.questions;
      if (first) largePhoto(first).catch(() => {}).then(() => rest.forEach((question) => largePhoto(question).catch(() => {})));
    })
    .catch((error) => { if (version === listVersion) showStopped(error); })
    .finally(() => { if (fetching === request) fetching = null; });
  fetching = request;
  return request;
}

export async function advance() {
  const isCurrent = startTurn();
  if (!queue.length) {
    $("stage").setAttribute("aria-busy", "true");
    if (fetchError) showWaiting(fetchError);
    await prefetch();
    if (!queue.length && !exhausted && isCurrent()) await prefetch(); // all of the first reply were answered meanwhile
    if (!isCurrent() || (!queue.length && !exhausted)) return; // the reason is shown already
  }
  current = queue.shift() || null;
  if (!current) return showFinished();
  if (queue.length < AHEAD / 2) prefetch();
  showOnly("view-one");
  const question = current;
  $("photo").classList.remove("zoomed");
  setTitle("asked", "asked-class", question.class);
  showCaption(question);
  $("stage").setAttribute("aria-busy", "true");
  enableAnswers(true);
  try {
    const onFailure = (error) => $("photo").replaceChildren(el("p", {}, `Waiting for the photo. ${reason(error)}`));
    const url = await retry(() => largePhoto(question), isCurrent, onFailure);
    if (!isCurrent()) return;
    const alt = `Photo ${question.name}`;
    $("photo").replaceChildren(el("img", { src: url, alt, draggable: "false" }));
    if (showsMap) showMap(question);
  } catch (error) {
    if (!isCurrent()) return;
    if (error.status === 401) return showStopped(error);
    $("photo").replaceChildren(el("p", {}, `${question.name} cannot be shown. Answer unsure to continue.`));
    enableAnswers(false);
  }
  $("stage").setAttribute("aria-busy", "false");
}

/** Enable yes and no, which need a photo. */
function enableAnswers(enabled) {
  for (const button of document.querySelectorAll("#answers .yes, #answers .no")) button.disabled = !enabled;
}

function showCaption(question) {
  const parts = [];
  if (question.label) parts.push(question.label > 0 ? "labelled present" : "labelled absent");
  if (question.answer) parts.push(`${question.answer.who === reviewer || !reviewer ? "your answer" : question.answer.who}: ${ANSWER_WORDS.get(question.answer.value)}`);
  if (showsScore) parts.push(modelOpinion(question), question.why);
  parts.push(question.name);
  $("caption").textContent = parts.join(" · ");
}

export function answerSingle(value) {
  if (!current || !isReady() || $("stage").getAttribute("aria-busy") === "true") return;
  const question = current;
  if (value && $("answers").querySelector(".yes").disabled) return announce("There is no photo: answer unsure to continue.");
  flash(document.querySelector(`#answers [data-value="${value}"]`));
  shownEntries.add(question.entry);
  answer([question], [value]);
  announce(`${shorten(question.class)}: ${ANSWER_WORDS.get(value)}.`);
  current = null;
  advance();
}

function flash(button) {
  button.classList.add("pressed");
  setTimeout(() => button.classList.remove("pressed"), 120);
}

// ---- the opinion of the model

export function enableMaps(has) {
  hasMaps = has;
  $("map").hidden = !has;
}

async function showMap(question) {
  $("photo").querySelector(".map")?.remove();
  if (!showsMap || !hasMaps) return;
  try {
    const slow = setTimeout(() => announce("Loading the model…"), 300);
    const url = await loadImage(`/api/map/${question.image}/${question.column}`).finally(() => clearTimeout(slow));
    if (question !== current || !showsMap) return;
    announce(`The model sees ${shorten(question.class)} in the coloured areas.`);
    $("photo").append(el("img", { src: url, class: "map", alt: "" }));
  } catch (error) {
    const why = error instanceof Refused ? error.message : "no reply";
    if (question === current) announce(`Where is ${shorten(question.class)}? ${why[0].toUpperCase()}${why.slice(1)}.`);
  }
}

for (const button of document.querySelectorAll("#answers button")) {
  button.addEventListener("click", () => answerSingle(Number(button.dataset.value)));
}
$("map").addEventListener("click", () => {
  showsMap = !showsMap;
  toggle($("map"), showsMap);
  if (current) showMap(current);
});
$("score").addEventListener("click", () => {
  showsScore = !showsScore;
  toggle($("score"), showsScore);
  if (current) showCaption(current);
});
