// The grid: photos of one class, those marked that are unlike the others, and all saved at once.
import { $, WORDS, brief, el, newTurn, say, showOnly, title } from "/screen.js";
import { answer, insist, isReady, small } from "/talk.js";
import { ask, finished, release, seen, stalled, stopped } from "/list.js";

const narrow = matchMedia("(max-width: 820px)");

const grid = { questions: [], values: [], negative: true, looked: false, photos: [] };

export async function openGrid() {
  const mine = newTurn();
  const count = narrow.matches ? 12 : 15; // what a screen shows at once
  try {
    const reply = await insist(() => ask(count, [], { one_class: true }), mine, stalled);
    if (mine()) showGrid(reply.questions);
    else if (reply) release(reply.questions);
  } catch (error) { if (mine()) stopped(error); }
}

/** The questions that this page has for this view. */
export const heldByGrid = () => grid.questions;

export function dropGrid() { grid.questions = []; }

export function putBackGrid(questions) {
  newTurn();
  release(grid.questions);
  showGrid(questions);
}

function showGrid(questions) {
  grid.questions = questions;
  grid.looked = false;
  if (!questions.length) return finished();
  const sure = questions.map((question) => question.probability ?? 0);
  grid.negative = sure.reduce((sum, p) => sum + p, 0) / sure.length >= 0.4;
  startGrid();
  showOnly("view-grid");
}

function startGrid() {
  const usual = grid.negative ? 1 : -1;
  grid.values = grid.questions.map((question) => question.said?.value ?? usual); // what was said stays said
  $("grid-word").textContent = grid.negative ? "are NOT" : "ARE";
  $("grid-word").classList.toggle("are", !grid.negative);
  title("grid-title", "grid-class", grid.questions[0].class);
  const photos = grid.questions.map(() => "coming");
  grid.photos = photos;
  $("grid-tiles").replaceChildren(...grid.questions.map((question, at) => {
    const tile = el("button", { type: "button", class: "tile", "data-at": String(at) });
    const picture = el("img", { class: "pic", alt: "", draggable: "false" });
    small(question).then((url) => {
      picture.src = url;
      photos[at] = "shown";
    }, () => {
      photos[at] = "gone";
      picture.replaceWith(el("span", { class: "pic gone" }, `${question.name} cannot be shown`));
      if (grid.photos === photos) drawTile(at);
    });
    tile.append(picture, el("span", { class: "mark" }));
    tile.addEventListener("click", () => turnTile(at));
    return el("li", {}, tile);
  }));
  grid.values.forEach((_, at) => drawTile(at));
}

function drawTile(at) {
  const tile = $("grid-tiles").querySelector(`[data-at="${at}"]`);
  const gone = grid.photos[at] === "gone"; // nobody can have looked at it: nothing is said about it
  if (gone) grid.values[at] = grid.questions[at].said?.value ?? null;
  tile.disabled = gone;
  const value = grid.values[at];
  const usual = grid.negative ? 1 : -1;
  const marked = value !== null && (value !== usual || Boolean(grid.questions[at].said));
  tile.dataset.value = marked ? String(value) : "";
  tile.setAttribute("aria-label", `Photo ${at + 1} of ${grid.questions.length}: ${grid.questions[at].class}, ${WORDS.get(value) ?? "cannot be shown"}`);
  tile.querySelector(".mark").textContent = marked ? WORDS.get(value) : "";
  const counts = [1, -1, 0].map((kind) => grid.values.filter((one) => one === kind).length);
  const said = `${counts[0]} yes, ${counts[1]} no${counts[2] ? `, ${counts[2]} unsure` : ""}`;
  $("grid-save").firstChild.textContent = `Save: ${said} `;
}

/** Whether a photo was there to be marked. */
export function markFocused(value) {
  const tile = document.activeElement;
  if (!tile.matches("#grid-tiles .tile")) return false;
  const at = Number(tile.dataset.at);
  grid.values[at] = value;
  drawTile(at);
  return true;
}

function turnTile(at) {
  const cycle = grid.negative ? [1, -1, 0] : [-1, 1, 0];
  grid.values[at] = cycle[(cycle.indexOf(grid.values[at]) + 1) % 3];
  drawTile(at);
}

export function saveGrid() {
  if (!grid.questions.length || !isReady()) return;
  // An answer that stays as it was is not given again: it keeps who gave it, and undo has nothing to take back.
  const news = [...grid.questions.keys()].filter((at) => (grid.questions[at].said?.value ?? null) !== grid.values[at]);
  if (news.some((at) => grid.photos[at] === "coming")) return say("Some photos are not here yet. Wait for them, then save.");
  const last = $("grid-tiles").lastElementChild;
  if (!grid.looked && last.getBoundingClientRect().bottom > innerHeight) {
    grid.looked = true; // nobody has seen these: not saved as if somebody had
    last.scrollIntoView({ block: "center" });
    return say("There are more photos. Look at these too, then save.");
  }
  for (const question of grid.questions) seen.add(question.entry);
  if (news.length) answer(news.map((at) => grid.questions[at]), news.map((at) => grid.values[at]));
  const many = news.length === 1 ? "1 answer" : `${news.length || "no"} new answers`;
  say(`Saved ${many} on ${brief(grid.questions[0].class)}.`);
  grid.questions = [];
  openGrid();
}

$("grid-save").addEventListener("click", saveGrid);
$("grid-flip").addEventListener("click", () => { grid.negative = !grid.negative; startGrid(); });
