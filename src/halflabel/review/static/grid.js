// The grid: photos of one class; the user marks the exceptions and saves all answers at once.
import { $, ANSWER_WORDS, shorten, el, startTurn, announce, currentTurn, setTitle, showOnly } from "/screen.js";
import { answer, retry, isReady, smallPhoto } from "/connection.js";
import { fetchQuestions, showFinished, release, shownEntries, showWaiting, showStopped } from "/questions.js";

const narrow = matchMedia("(max-width: 820px)");

const grid = { questions: [], values: [], marksNegatives: true, hasScrolled: false, photos: [], origin: null, last: 0, ahead: null }; // origin: {text, options} of photos chosen elsewhere

async function fetchPage(excluded = []) {
  const count = narrow.matches ? 12 : 15; // what a screen shows at once
  const options = { one_class: true, order: $("filter-order").value, name: $("filter-name").value, ...grid.origin?.options };
  return (await fetchQuestions(count, excluded, options)).questions;
}

export async function openGrid() {
  const isCurrent = startTurn();
  const { ahead } = grid;
  grid.ahead = null;
  try {
    const questions = ahead?.length ? ahead : await retry(fetchPage, isCurrent, showWaiting);
    if (isCurrent()) showGrid(questions);
    else if (questions) release(questions);
  } catch (error) { if (isCurrent()) showStopped(error); }
}

/** Fetch the next page with its photos while the user looks at this one. */
async function loadAhead(isCurrent) {
  if (!isCurrent()) return;
  const questions = await fetchPage(grid.questions.map((question) => question.entry)).catch(() => []);
  if (!isCurrent() || !questions.length) return release(questions);
  grid.ahead = questions;
  for (const question of questions) smallPhoto(question).catch(() => {});
}

/** The questions that are reserved for this view. */
export const gridQuestions = () => [...grid.questions, ...(grid.ahead ?? [])];

export function clearGrid() {
  grid.questions = [];
  setOrigin(null);
}

/** Show photos that were chosen elsewhere: `options` of the request, and a text that describes them. */
export function setOrigin(origin) {
  grid.ahead = null;
  grid.origin = origin;
  $("grid-like").hidden = !origin;
  if (origin) $("grid-like").firstChild.textContent = origin.text;
}

/** Show photos like the focused one; false if there is none. */
export function showAlike(index = Number(document.activeElement.closest("#grid-tiles .tile")?.dataset.index ?? -1)) {
  const question = grid.questions[index];
  if (!question) return false;
  release(gridQuestions());
  setOrigin({ text: `Most similar to ${question.name} first.`, options: { like: question.image, label: question.class } });
  openGrid();
  return true;
}

export function restoreGrid(questions, values) {
  startTurn();
  release(gridQuestions());
  grid.ahead = null;
  showGrid(questions, values);
}

/** Show photos; after an undo with the marks that were saved, where no earlier answer holds again. */
function showGrid(questions, values = null) {
  grid.questions = questions;
  grid.hasScrolled = false;
  grid.last = 0;
  if (!questions.length) return showFinished();
  const chances = questions.map((question) => question.probability ?? 0);
  grid.marksNegatives = chances.reduce((sum, p) => sum + p, 0) / chances.length >= 0.4;
  startGrid();
  if (values) grid.values = questions.map((question, index) => question.answer?.value ?? values[index]);
  grid.values.forEach((_, index) => drawTile(index));
  showOnly("view-grid");
  const isCurrent = currentTurn();
  Promise.allSettled(questions.map(smallPhoto)).then(() => loadAhead(isCurrent)); // the photos on the screen come first
}

function startGrid() {
  const defaultValue = grid.marksNegatives ? 1 : -1;
  grid.values = grid.questions.map((question) => question.answer?.value ?? defaultValue); // an earlier answer stays
  $("grid-word").textContent = grid.marksNegatives ? "are NOT" : "ARE";
  $("grid-word").classList.toggle("are", !grid.marksNegatives);
  setTitle("grid-title", "grid-class", grid.questions[0].class);
  const photos = grid.questions.map(() => "coming");
  grid.photos = photos;
  $("grid-tiles").replaceChildren(...grid.questions.map((question, index) => {
    const tile = el("button", { type: "button", class: "tile", "data-index": String(index) });
    const picture = el("img", { class: "pic", alt: "", draggable: "false" });
    smallPhoto(question).then((url) => {
      picture.src = url;
      photos[index] = "shown";
    }, () => {
      photos[index] = "gone";
      picture.replaceWith(el("span", { class: "pic gone" }, `${question.name} cannot be shown`));
      if (grid.photos === photos) drawTile(index);
    });
    tile.append(picture, el("span", { class: "mark" }));
    tile.addEventListener("click", (event) => {
      if (!drag?.before) (event.shiftKey ? markRange : cycleTile)(index);
    });
    const alike = el("button", { type: "button", class: "alike", title: "More like this", "aria-label": `More like photo ${index + 1}` }, "≈");
    alike.addEventListener("click", () => showAlike(index));
    return el("li", { class: "cell" }, tile, alike);
  }));
  grid.values.forEach((_, index) => drawTile(index));
}

function drawTile(index) {
  const tile = $("grid-tiles").querySelector(`[data-index="${index}"]`);
  const gone = grid.photos[index] === "gone"; // nobody can have seen it: it gets no answer
  if (gone) grid.values[index] = grid.questions[index].answer?.value ?? null;
  tile.disabled = gone;
  const value = grid.values[index];
  const defaultValue = grid.marksNegatives ? 1 : -1;
  const marked = value !== null && (value !== defaultValue || Boolean(grid.questions[index].answer));
  tile.dataset.value = marked ? String(value) : "";
  tile.setAttribute("aria-label", `${index + 1} of ${grid.questions.length}, ${grid.questions[index].name}: ${grid.questions[index].class}, ${ANSWER_WORDS.get(value) ?? "cannot be shown"}`);
  tile.querySelector(".mark").textContent = marked ? ANSWER_WORDS.get(value) : "";
  $("grid-save").firstChild.textContent = `Save: ${summary()} `;
}

function summary() {
  const [yes, no, unsure] = [1, -1, 0].map((kind) => grid.values.filter((value) => value === kind).length);
  return `${yes} yes, ${no} no${unsure ? `, ${unsure} unsure` : ""}`;
}

/** Mark the focused photo; false if there is none. */
export function markFocused(value) {
  const tile = document.activeElement;
  if (!tile.matches("#grid-tiles .tile")) return false;
  const index = Number(tile.dataset.index);
  grid.values[index] = value;
  drawTile(index);
  return true;
}

function cycleTile(index) {
  const cycle = grid.marksNegatives ? [1, -1, 0] : [-1, 1, 0];
  grid.values[index] = cycle[(cycle.indexOf(grid.values[index]) + 1) % 3];
  grid.last = index;
  drawTile(index);
  announce(`${grid.questions[index].name}: ${ANSWER_WORDS.get(grid.values[index])}.`);
}

/** Mark all photos from the last click to this one like the last one. */
function markRange(index) {
  const value = grid.values[grid.last];
  for (let at = Math.min(grid.last, index); at <= Math.max(grid.last, index); at += 1) {
    if (grid.photos[at] !== "gone") grid.values[at] = value;
    drawTile(at);
  }
}

// Drag with the mouse: the first photo is marked as by a click, and all up to the pointer like it.

let drag = null; // {from, before} while the button is down; `before` are the values once the pointer has left the first photo

const tileOf = (element) => element?.closest("#grid-tiles .tile:enabled");

$("grid-tiles").addEventListener("pointerdown", (event) => {
  const tile = tileOf(event.target);
  const starts = tile && event.pointerType === "mouse" && event.button === 0 && !event.shiftKey;
  drag = starts ? { from: Number(tile.dataset.index), before: null } : null;
});
addEventListener("pointermove", (event) => {
  const tile = drag && tileOf(document.elementFromPoint(event.clientX, event.clientY));
  if (!tile || (!drag.before && Number(tile.dataset.index) === drag.from)) return;
  drag.before ??= [...grid.values];
  grid.values = [...drag.before];
  cycleTile(drag.from);
  markRange(Number(tile.dataset.index));
  grid.values.forEach((_, index) => drawTile(index));
});
addEventListener("pointerup", () => setTimeout(() => { drag = null; })); // after the click that ends the drag

function markAll() {
  const [other, plain] = grid.marksNegatives ? [-1, 1] : [1, -1];
  const value = grid.values.every((kind) => kind === other) ? plain : other;
  grid.values = grid.values.map((kind, index) => (grid.photos[index] === "gone" ? kind : value));
  grid.values.forEach((_, index) => drawTile(index));
  announce(`${summary()}.`);
}

export function saveGrid() {
  if (!grid.questions.length || !isReady()) return;
  // An unchanged answer is not sent again: it keeps its author, and undo does not affect it.
  const changed = [...grid.questions.keys()].filter((index) => (grid.questions[index].answer?.value ?? null) !== grid.values[index]);
  if (changed.some((index) => grid.photos[index] === "coming")) return announce("Some photos are still loading. Wait for them, then save.");
  const last = $("grid-tiles").lastElementChild;
  if (!grid.hasScrolled && last.getBoundingClientRect().bottom > innerHeight) {
    grid.hasScrolled = true; // nobody has seen these photos yet: not saved without looking
    last.scrollIntoView({ block: "center" });
    return announce("There are more photos. Look at them too, then save.");
  }
  for (const question of grid.questions) shownEntries.add(question.entry);
  if (changed.length) answer(changed.map((index) => grid.questions[index]), changed.map((index) => grid.values[index]));
  const countText = changed.length === 1 ? "1 answer" : `${changed.length || "no"} new answers`;
  announce(`Saved ${countText} on ${shorten(grid.questions[0].class)}.`);
  grid.questions = [];
  openGrid();
}

$("grid-all").addEventListener("click", markAll);
$("grid-unlike").addEventListener("click", () => { release(gridQuestions()); setOrigin(null); openGrid(); });
$("grid-save").addEventListener("click", saveGrid);
$("grid-flip").addEventListener("click", () => { grid.marksNegatives = !grid.marksNegatives; startGrid(); });
