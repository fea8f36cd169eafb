// The page: its views and keys, undo in whichever view, and the start.
import { $, brief, say, setView, view } from "/screen.js";
import { tab } from "/tab.js";
import { Refused, begin, call, insist, isReady, takeBack, token } from "/talk.js";
import { release, seen, showProgress, stalled, stopped } from "/list.js";
import { advance, answerOne, dropOne, heldByOne, offerMaps, putBackOne } from "/one.js";
import { dropGrid, heldByGrid, markFocused, openGrid, putBackGrid, saveGrid } from "/grid.js";
import { answerFocused, openGallery, putBackCards } from "/gallery.js";

const held = () => [...heldByOne(), ...heldByGrid()];

function open(name) {
  setView(name);
  say(""); // what was said belongs to the view before
  for (const button of document.querySelectorAll("nav button")) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  for (const part of document.querySelectorAll(".asks")) part.hidden = name === "missing" || name === "wrong";
  restart();
}

function restart() {
  seen.clear();
  showProgress();
  release(held());
  dropOne();
  dropGrid();
  if (view === "one") advance();
  else if (view === "grid") openGrid();
  else openGallery();
}

function undo() {
  if (!isReady()) return;
  const questions = takeBack();
  if (!questions) return say("There is nothing to take back.");
  for (const question of questions) seen.delete(question.entry);
  if (view === "one") putBackOne(questions);
  else if (view === "grid") putBackGrid(questions);
  else putBackCards(questions);
  say(`Taken back: ${questions.length === 1 ? brief(questions[0].class) : `${questions.length} answers`}.`);
}

// ---- keys

const KEYS = new Map([["y", 1], ["n", -1], ["u", 0]]);

function answerKey(value) {
  if (view === "grid") return markFocused(value);
  if (view !== "one") return answerFocused(value);
  answerOne(value);
  return true;
}

function step(key) {
  const tiles = [...document.querySelectorAll(`#view-${view === "grid" ? "grid" : "gallery"} .tile`)];
  const at = tiles.findIndex((tile) => tile === document.activeElement || tile.contains(document.activeElement));
  if (at < 0) return tiles[0]?.focus();
  const columns = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length || 1;
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  tiles[Math.min(Math.max(at + move, 0), tiles.length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.closest?.("select, input, textarea")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const place = { 1: "one", 2: "grid", 3: "missing", 4: "wrong" }[key];
  let taken = true;
  if (event.repeat && (KEYS.has(key) || key === "Enter")) return event.preventDefault(); // a key held down is one answer
  if (KEYS.has(key)) taken = answerKey(KEYS.get(key));
  else if (key === "z" || key === "Backspace") undo();
  else if (key === "m" && view === "one") $("map").click();
  else if (key === "c" && view === "one") $("score").click();
  else if (key === "i" && view === "grid") $("grid-flip").click();
  else if (key === "Enter" && view === "grid" && !$("view-grid").hidden && !event.target.closest?.("button:not(.tile), a")) saveGrid();
  else if (key.startsWith("Arrow") && view !== "one") step(key);
  else if (place) open(place);
  else if (key === "?") $("help").showModal();
  else taken = false;
  if (taken) event.preventDefault();
});

for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => open(button.dataset.view));
}
$("undo").addEventListener("click", undo);
$("grid-undo").addEventListener("click", undo);
$("help-close").addEventListener("click", () => $("help").close());
$("help-open").addEventListener("click", () => $("help").showModal());
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("change", () => { $("main").focus({ preventScroll: true }); restart(); });
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address keeps its token
  $("main").focus();
});
addEventListener("hashchange", () => location.reload()); // another token, opened over this page: the browser loads nothing
setInterval(() => {
  const entries = held().map((question) => question.entry);
  if (entries.length && !document.hidden) call("/api/hold", { tab, entries }).catch(() => {});
}, 30_000);

async function start() {
  if (!token) return stopped(new Refused("The address lacks its token. Open the one that the terminal shows."));
  // Side by side: the first question need not wait for the state.
  const first = advance();
  try {
    const state = await insist(async () => (await call("/api/state")).json(), () => true, stalled);
    offerMaps(state.maps);
    $("title").textContent = state.run ? `Review: ${state.run}` : "Review";
    document.title = `${state.run || "halflabel"} · review`;
    showProgress(state);
    begin(state.project, showProgress, stopped);
  } catch (error) { stopped(error); }
  await first;
}

start();
