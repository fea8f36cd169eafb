// The page: switching views, keys, undo, and the start.
import { $, shorten, announce, setView, view } from "/screen.js";
import { tab } from "/tab.js";
import { Refused, startSending, call, retry, isReady, undoLast, token, wantedClass } from "/connection.js";
import { release, shownEntries, showProgress, showWaiting, showStopped } from "/questions.js";
import { advance, answerSingle, renewQueue, clearSingle, singleQuestions, enableMaps, restoreSingle } from "/single.js";
import { clearGrid, gridQuestions, markFocused, openGrid, restoreGrid, saveGrid, setOrigin, showAlike } from "/grid.js";
import { answerFocused, openGallery, restoreCards } from "/gallery.js";
import { follow, startLive } from "/live.js";
import { clearPhoto, openPhoto, photoQuestions, restorePhoto, savePhoto, toggleClass } from "/photo.js";
import { startSwipes, toggleZoom } from "/gestures.js";
import { leaveMap, onSelect, openMap } from "/map.js";
import "/recent.js";
import { followTeam, startTeam } from "/team.js";

const reservedQuestions = () => [...singleQuestions(), ...gridQuestions(), ...photoQuestions()];

function open(name, origin = null) {
  setView(name);
  $("main").focus({ preventScroll: true }); // so that Enter saves instead of opening the view again
  announce(""); // the status belongs to the previous view
  for (const button of document.querySelectorAll("nav button")) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  for (const part of document.querySelectorAll(".asks")) part.hidden = ["wrong", "conflicts", "map"].includes(name);
  for (const part of document.querySelectorAll(".browses")) part.hidden = name !== "grid";
  restart(origin);
}

function openClass(name) {
  open("grid"); // lists all classes
  $("filter-class").value = name;
  $("filter-order").value = "high";
  restart();
}

function restart(origin = null) {
  shownEntries.clear();
  showProgress();
  release(reservedQuestions());
  clearSingle();
  clearGrid();
  clearPhoto();
  leaveMap();
  if (origin) setOrigin(origin);
  if (view === "one") advance();
  else if (view === "map") openMap();
  else if (view === "photo") openPhoto();
  else if (view === "grid") openGrid();
  else openGallery();
}

function undo() {
  if (!isReady()) return;
  const last = undoLast();
  if (!last) return announce("There is nothing to undo here. State “answered” shows earlier answers, to change them.");
  const { questions, values } = last;
  for (const question of questions) shownEntries.delete(question.entry);
  if (view === "one") restoreSingle(questions);
  else if (view === "photo") restorePhoto(questions);
  else if (view === "grid") restoreGrid(questions, values);
  else restoreCards(questions);
  announce(`Undone: ${questions.length === 1 ? shorten(questions[0].class) : `${questions.length} answers`}.`);
}

// ---- keys

const KEYS_PLACE = "halflabel-keys"; // in localStorage: whether single letters and numbers are keys
const KEYS = new Map([["y", 1], ["n", -1], ["u", 0]]);

function answerKey(value) {
  if (view === "photo") return false;
  if (view === "grid") return markFocused(value);
  if (view !== "one") return answerFocused(value);
  answerSingle(value);
  return true;
}

function step(key) {
  const tiles = [...document.querySelectorAll(`#view-${view === "grid" ? "grid" : "gallery"} .tile`)];
  const index = tiles.findIndex((tile) => tile === document.activeElement || tile.contains(document.activeElement));
  if (index < 0) return tiles[0]?.focus();
  const columns = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length || 1;
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  tiles[Math.min(Math.max(index + move, 0), tiles.length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("select, input, textarea")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key.length === 1 && !$("keys-on").checked) return;
  const targetView = { 1: "one", 2: "grid", 3: "wrong", 4: "map", 5: "conflicts", p: "photo" }[key];
  let handled = true;
  if (event.repeat && (KEYS.has(key) || key === "Enter" || /^[1-9]$/.test(key))) return event.preventDefault(); // a key that is held down is one answer
  if (KEYS.has(key)) handled = answerKey(KEYS.get(key));
  else if (key === "z" || key === "Backspace") undo();
  else if (view === "photo" && /^[1-9]$/.test(key)) handled = toggleClass(Number(key) - 1);
  else if (view === "photo" && key === "Enter" && !event.target.closest?.("button, a")) savePhoto();
  else if (key === "x" && (view === "one" || view === "photo")) toggleZoom($(view === "one" ? "photo" : "photo-large"));
  else if (key === "a" && view === "grid") $("grid-all").click();
  else if (key === "l" && view === "grid") handled = showAlike();
  else if (key === "m" && view === "one") $("map").click();
  else if (key === "c" && view === "one") $("score").click();
  else if (key === "i" && view === "grid") $("grid-flip").click();
  else if (key === "Enter" && view === "grid" && !$("view-grid").hidden && !event.target.closest?.("button:not(.tile), a")) saveGrid();
  else if (key.startsWith("Arrow") && view !== "one" && view !== "map") step(key);
  else if (targetView && !document.querySelector(`nav [data-view="${targetView}"]`).hidden) open(targetView);
  else if (key === "r" && !$("live").hidden) $("live-learn").click();
  else if (key === "?") $("help").showModal();
  else handled = false;
  if (handled) event.preventDefault();
});

for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => open(button.dataset.view));
}
startSwipes(answerSingle);
document.addEventListener("click", (event) => { // by mouse: Enter then saves instead of repeating the click
  if (event.detail && event.target.closest("#view-photo button")) $("main").focus({ preventScroll: true });
}, true);
onSelect((origin) => open("grid", origin));
$("undo").addEventListener("click", undo);
$("grid-undo").addEventListener("click", undo);
$("help-close").addEventListener("click", () => $("help").close());
$("help-open").addEventListener("click", () => $("help").showModal());
$("keys-on").checked = localStorage.getItem(KEYS_PLACE) !== "off";
$("keys-on").addEventListener("change", () => localStorage.setItem(KEYS_PLACE, $("keys-on").checked ? "on" : "off"));
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("change", () => { $("main").focus({ preventScroll: true }); restart(); });
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // keeps the token in the address
  $("main").focus();
});
addEventListener("hashchange", () => location.reload()); // a new token in the same tab: the browser does not reload by itself
setInterval(() => {
  const entries = reservedQuestions().map((question) => question.entry);
  if (entries.length && !document.hidden) call("/api/renew", { tab, entries }).catch(() => {});
}, 30_000);

async function start() {
  if (!token) return showStopped(new Refused("The address has no token. Open the address shown in the terminal."));
  // In parallel: the first question need not wait for the state.
  const first = advance();
  try {
    const state = await retry(async () => (await call("/api/state")).json(), () => true, showWaiting);
    enableMaps(state.maps);
    $("title").textContent = state.run ? `Review: ${state.run}` : "Review";
    document.title = `${state.run || "halflabel"} · review`;
    showProgress(state);
    startSending(state.project, (reply) => { showProgress(reply); follow(reply.live); followTeam(reply); }, showStopped);
    startTeam(state, restart);
    if (state.live) startLive(state.live, renewQueue);
    if (wantedClass) openClass(decodeURIComponent(wantedClass));
  } catch (error) { showStopped(error); }
  await first;
}

start();
