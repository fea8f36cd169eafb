// One photo with all its classes: the likely ones first, keys 1 to 9 mark them, Enter saves.
import { $, announce, el, setTitle, showOnly, startTurn } from "/screen.js";
import { answer, call, isReady, largePhoto, retry, unsent } from "/connection.js";
import { fetchQuestions, modelOpinion, release, showFinished, shownEntries, showStopped, showWaiting } from "/questions.js";

const FEW = 18; // classes shown at first, or fewer where they do not fit: what nobody has seen gets no answer
const ROW = 44; // pixels of a class

const photo = { question: null, items: [], marked: new Set(), count: FEW, hasScrolled: false, ahead: null };

/** The questions that are reserved for this view: of the photo on the screen and of the next one. */
export const photoQuestions = () => [photo.question, photo.ahead].filter(Boolean);

export function clearPhoto() { photo.question = photo.ahead = null; }

/** Show the photo of a question, or of the next one. */
export async function openPhoto(wanted = null) {
  const isCurrent = startTurn();
  try {
    const question = wanted ?? photo.ahead ?? (await retry(() => fetchQuestions(1, []), isCurrent, showWaiting))?.questions[0];
    if (!isCurrent()) return question && release([question]);
    photo.question = question ?? null;
    if (question === photo.ahead) photo.ahead = null;
    if (!question) return showFinished();
    while (wanted && unsent().length && isCurrent()) await new Promise((done) => { setTimeout(done, 30); }); // until the undo is stored
    const reply = await retry(async () => (await call(`/api/photo/${question.image}`)).json(), isCurrent, showWaiting);
    if (!isCurrent()) return;
    photo.items = reply.classes;
    showOnly("view-photo");
    const isList = getComputedStyle($("photo-classes")).overflowY === "auto"; // on a phone the page scrolls instead
    photo.count = isList ? Math.max(9, Math.min(FEW, Math.floor(parseFloat(getComputedStyle($("photo-classes")).maxHeight) / ROW))) : FEW;
    photo.hasScrolled = false;
    photo.marked = new Set(photo.items.filter(isPresent).map((item) => item.entry));
    setTitle("photo-title", "photo-name", question.name);
    $("photo-large").replaceChildren();
    $("photo-large").classList.remove("zoomed");
    draw();
    const url = await retry(() => largePhoto(question), isCurrent, showWaiting);
    if (!isCurrent()) return;
    $("photo-large").replaceChildren(el("img", { src: url, alt: `Photo ${question.name}`, draggable: "false" }));
    if (!photo.ahead) await loadAhead(question, isCurrent);
  } catch (error) { if (isCurrent()) showStopped(error); }
}

/** Fetch the next photo while the user looks at this one. */
async function loadAhead(shown, isCurrent) {
  const questions = await fetchQuestions(6, [shown.entry]).then((reply) => reply.questions, () => []);
  if (!isCurrent()) return release(questions);
  const next = questions.find((question) => question.image !== shown.image);
  release(questions.filter((question) => question !== next));
  photo.ahead = next ?? null;
  if (next) largePhoto(next).catch(() => {});
}

const valueOf = (item) => (item.answer ? item.answer.value : item.label);
const isPresent = (item) => valueOf(item) > 0;
const shownItems = () => photo.items.slice(0, photo.count);

function draw() {
  const focused = [...$("photo-classes").children].findIndex((item) => item.contains(document.activeElement));
  $("photo-classes").replaceChildren(...shownItems().map((item, index) => {
    const on = photo.marked.has(item.entry);
    const opinion = valueOf(item) ? (isPresent(item) ? "known: yes" : "known: no") : modelOpinion(item);
    const button = el("button", { type: "button", class: "class", "aria-pressed": String(on) },
      el("kbd", { "aria-hidden": "true" }, index < 9 ? String(index + 1) : ""), el("b", {}, item.class), el("span", { class: "muted" }, opinion));
    if (index < 9) button.setAttribute("aria-keyshortcuts", String(index + 1));
    button.addEventListener("click", () => toggleClass(index));
    return el("li", {}, button);
  }));
  $("photo-classes").children[focused]?.firstChild.focus({ preventScroll: true });
  $("photo-more").hidden = photo.count >= photo.items.length;
  const steps = changes(true);
  const yes = steps.filter(([, value]) => value > 0).length;
  $("photo-save").firstChild.textContent = `Save: ${yes} new yes, ${steps.length - yes} no `;
}

export function toggleClass(index) {
  const item = shownItems()[index];
  if (!item) return false;
  if (!photo.marked.delete(item.entry)) photo.marked.add(item.entry);
  draw();
  announce(`${item.class}: ${photo.marked.has(item.entry) ? "yes" : "no"}.`);
  return true;
}

/** What saving would answer: marked classes are present; with `rest` the other shown ones are absent. */
function changes(rest) {
  return shownItems().flatMap((item) => {
    const on = photo.marked.has(item.entry);
    if (on) return isPresent(item) ? [] : [[item, 1]];
    return (rest && valueOf(item) >= 0) || isPresent(item) ? [[item, -1]] : [];
  });
}

export function savePhoto(rest = true) {
  if (!photo.question || !isReady()) return;
  if (!$("photo-large").querySelector("img")) return announce("The photo is still loading.");
  const last = $("photo-classes").lastElementChild;
  if (rest && !photo.hasScrolled && last && last.getBoundingClientRect().top > innerHeight) {
    photo.hasScrolled = true; // nobody has seen these classes yet: no answer without looking
    last.scrollIntoView({ block: "center" });
    return announce("There are more classes. Look at them too, then save.");
  }
  const steps = changes(rest);
  if (steps.length) answer(steps.map(([item]) => item), steps.map(([, value]) => value), true);
  shownEntries.add(photo.question.entry);
  announce(`Saved ${steps.length} answers on ${photo.question.name}.`);
  release([photo.question]);
  photo.question = null;
  openPhoto();
}

export function restorePhoto(questions) { openPhoto(questions[0]); }

$("photo-save").addEventListener("click", () => savePhoto());
$("photo-marked").addEventListener("click", () => savePhoto(false));
$("photo-skip").addEventListener("click", () => { if (photo.question) { shownEntries.add(photo.question.entry); release([photo.question]); } openPhoto(); });
$("photo-more").addEventListener("click", () => { photo.count = photo.items.length; draw(); });
