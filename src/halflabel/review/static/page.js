// The views: one question at a time, a grid, two galleries; and the keys.
import {
  $, Refused, answer, begin, call, el, insist, isReady, large, photo, reason, say, send, small, tab, takeBack, token,
  trouble, unsent,
} from "/talk.js";

const WORDS = new Map([[1, "yes"], [-1, "no"], [0, "unsure"]]);
const AHEAD = 8; // questions fetched before they are needed, with their photos
const narrow = matchMedia("(max-width: 820px)");

let view = "one";
let hasMaps = false;
let labels = []; // all classes
let progress = null; // what the server last said
let current = null; // the question shown
let queue = []; // those after it
let seen = new Set(); // entries shown since the filters last changed
let filling = null;
let failing = null; // why the questions last asked for have not come yet
let dry = false; // nothing left for these filters
let showsMap = false;
let showsScore = false;
let grid = { questions: [], values: [], negative: true, looked: false, photos: [] };
let turn = 0; // goes up when what is shown changes: late replies are then dropped
let list = 0; // goes up when other questions are wanted; not with each question, which may be quicker than the server

const brief = (name) => ([...name].length > 40 ? `${[...name].slice(0, 39).join("")}…` : name); // where it is only named again

function title(heading, place, name) {
  $(place).textContent = name;
  $(heading).classList.toggle("long", name.length > 40);
}

// ---- undo, in whichever view

function undo() {
  const questions = takeBack();
  if (!questions) return say("There is nothing to take back.");
  for (const question of questions) seen.delete(question.entry);
  if (view === "one") {
    queue.unshift(...questions, ...(current ? [current] : []));
    current = null;
    advance();
  } else if (view === "grid") {
    turn += 1;
    release(grid.questions);
    showGrid(questions);
  } else {
    for (const question of questions) {
      const tile = document.querySelector(`.card[data-entry="${question.entry}"]`);
      if (tile) markCard(tile, null);
    }
  }
  say(`Taken back: ${questions.length === 1 ? brief(questions[0].class) : `${questions.length} answers`}.`);
}

// ---- progress and what the random checks say

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
// A chance is never certain: what would round to 0 or 100 says so.
const chance = (p) => (p < 0.005 ? "<\u00a01\u00a0%" : p > 0.995 ? ">\u00a099\u00a0%" : percent(p));
const atMost = (p) => `${Math.ceil(100 * p)}\u00a0%`;

function showProgress(state) {
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
  const chosen = $("filter-class").value;
  const options = [el("option", { value: "" }, "all classes")];
  const names = view === "one" || view === "grid"
    ? state.classes.map((row) => [row.name, `${row.name} (${row.open})`])
    : (state.labels || labels).map((name) => [name, name]);
  for (const [name, title] of names) options.push(el("option", { value: name }, title));
  if (document.activeElement !== $("filter-class")) {
    $("filter-class").replaceChildren(...options);
    $("filter-class").value = names.some(([name]) => name === chosen) ? chosen : "";
  }
  if (state.labels) labels = state.labels;
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

// ---- one by one

function filters() {
  const [low, high] = $("filter-confidence").value.split("-").map(Number);
  return { label: $("filter-class").value, state: $("filter-state").value, low, high };
}

function release(questions) {
  const entries = questions.map((question) => question.entry);
  if (entries.length) call("/api/release", { tab, entries }).catch(() => {}); // else they come free after a while
}

function letGo() {
  release([...queue, ...(current ? [current] : []), ...grid.questions]);
  list += 1;
  filling = null;
  failing = null;
  queue = [];
  current = null;
  grid.questions = [];
}

async function fill() {
  if (filling || dry) return filling;
  const mine = list;
  const ask = async () => {
    const shown = [...queue, ...(current ? [current] : [])].map((question) => question.entry);
    const skip = [...new Set([...shown, ...unsent(), ...[...seen].slice(-1500)])];
    return (await call("/api/next", { tab, count: AHEAD, skip, ...filters() })).json();
  };
  const failed = (error) => {
    failing = error;
    if (!queue.length && !current) stalled(error);
  };
  const asked = insist(ask, () => mine === list, failed)
    .then((reply) => {
      failing = null;
      if (mine !== list) return reply && release(reply.questions);
      queue.push(...reply.questions);
      dry = reply.questions.length === 0;
      // The first has the server to itself: it is being waited for, the others are not yet.
      const [first, ...rest] = reply.questions;
      if (first) large(first).catch(() => {}).then(() => rest.forEach((question) => large(question).catch(() => {})));
    })
    .catch((error) => { if (mine === list) stopped(error); })
    .finally(() => { if (filling === asked) filling = null; });
  filling = asked;
  return asked;
}

/** Nothing can be shown until the server answers again; it is asked again meanwhile. */
function stalled(error) {
  none("Waiting for the server", `${reason(error)} It is asked again by itself; what you have answered is kept here.`);
}

/** Nothing can be shown, and asking again is of no use. */
function stopped(error) {
  trouble(reason(error));
  none("The questions cannot be shown", reason(error));
}

async function advance() {
  const mine = ++turn;
  if (!queue.length) {
    $("stage").setAttribute("aria-busy", "true");
    if (failing) stalled(failing);
    await fill();
    if (mine !== turn || (!queue.length && !dry)) return; // told already why
  }
  current = queue.shift() || null;
  if (!current) return finished();
  if (queue.length < AHEAD / 2) fill();
  showOnly("view-one");
  const question = current;
  title("asked", "asked-class", question.class);
  caption(question);
  $("stage").setAttribute("aria-busy", "true");
  judgeable(true);
  try {
    const waits = (error) => $("photo").replaceChildren(el("p", {}, `Waiting for the photo. ${reason(error)}`));
    const url = await insist(() => large(question), () => mine === turn, waits);
    if (mine !== turn) return;
    const alt = `Photo ${question.name}`;
    $("photo").replaceChildren(el("img", { src: url, alt, draggable: "false" }));
    if (showsMap) showMap(question);
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) return stopped(error);
    $("photo").replaceChildren(el("p", {}, `${question.name} cannot be shown. Unsure goes on to the next.`));
    judgeable(false);
  }
  $("stage").setAttribute("aria-busy", "false");
}

/** Whether there is a photo to say yes or no to. */
function judgeable(is) {
  for (const button of document.querySelectorAll("#answers .yes, #answers .no")) button.disabled = !is;
}

function caption(question) {
  const parts = [];
  if (question.label) parts.push(question.label > 0 ? "labelled present" : "labelled absent");
  if (question.said) parts.push(`you said ${WORDS.get(question.said.value)}`);
  if (showsScore) parts.push(opinion(question), question.why);
  parts.push(question.name);
  $("caption").textContent = parts.join(" · ");
}

function opinion(question) {
  const score = `score ${question.score === null ? "—" : question.score.toFixed(2)}`;
  if (question.probability === null || question.label) return score;
  // Where known labels are a fair sample, the score is the chance: one number is enough.
  return progress?.fair ? `chance ${chance(question.probability)}` : `chance up to ${atMost(question.probability)}, ${score}`;
}

function answerOne(value) {
  if (!current || !isReady() || $("stage").getAttribute("aria-busy") === "true") return;
  const question = current;
  if (value && $("answers").querySelector(".yes").disabled) return say("There is no photo to judge: unsure goes on.");
  flash(document.querySelector(`#answers [data-value="${value}"]`));
  seen.add(question.entry);
  answer([question], [value]);
  say(`${brief(question.class)}: ${WORDS.get(value)}.`);
  current = null;
  advance();
}

function flash(button) {
  button.classList.add("pressed");
  setTimeout(() => button.classList.remove("pressed"), 120);
}

async function showMap(question) {
  $("photo").querySelector(".map")?.remove();
  if (!showsMap || !hasMaps) return;
  try {
    const slow = setTimeout(() => say("Loading the model…"), 300);
    const url = await photo(`/api/map/${question.image}/${question.column}`).finally(() => clearTimeout(slow));
    if (question !== current || !showsMap) return;
    say(`The model sees ${brief(question.class)} in the coloured places.`);
    $("photo").append(el("img", { src: url, class: "map", alt: "" }));
  } catch (error) {
    const why = error instanceof Refused ? error.message : "no reply";
    if (question === current) say(`Where is ${brief(question.class)}? ${why[0].toUpperCase()}${why.slice(1)}.`);
  }
}

function toggle(button, on) { button.setAttribute("aria-pressed", String(on)); }

const stillOpen = () => (progress ? progress.questions - progress.answered : 0);
const pause = (time) => new Promise((done) => { setTimeout(done, time); });

async function finished() {
  const any = filters();
  const narrowed = any.label || any.state !== "open" || any.low > 0 || any.high < 1;
  if (narrowed) {
    return none("No question fits these filters", "Choose others above, or look through the galleries.",
      "Clear the filters", () => { $("filters").reset(); restart(); });
  }
  const mine = turn;
  for (let waited = 0; unsent().length; waited += 30) { // only then is it known how many are left
    if (waited === 300) none("Saving your answers", "They are kept in this browser until the server has them.");
    await pause(30);
    if (mine !== turn) return;
  }
  let left = stillOpen();
  if (left > 0) { // or another page has answered them since
    await call("/api/state").then(async (reply) => showProgress(await reply.json())).catch(() => {});
    if (mine !== turn) return;
    left = stillOpen();
  }
  if (left > 0 && view === "one") {
    return none(left === 1 ? "The last question is taken" : `The last ${left} questions are taken`,
      "Another page shows them. They come free a minute and a half after it is closed.", "Look again", restart);
  }
  if (left > 0) {
    return none("No photos for the grid", `Still open: ${left}. They are random checks, asked one by one, or cannot be shown, or another page has them.`,
      "One by one", () => open("one"));
  }
  none("All questions are answered",
    "Thank you. In the terminal: halflabel review RUN --export all.csv --with-labels, then train on all.csv. "
      + "Undo still works here, and the galleries have more.");
}

/** Words instead of photos, and a button where there is something to do about it. */
function none(title, said, word = "", act = null) {
  $("none-title").textContent = title;
  $("none-said").textContent = said;
  $("none-act").hidden = !act;
  $("none-act").textContent = word;
  $("none-act").onclick = act;
  $("grid-tiles").replaceChildren(); // none of an earlier grid is left to be marked
  showOnly("view-none");
}

// ---- grid

async function openGrid() {
  const mine = ++turn;
  letGo();
  const count = narrow.matches ? 12 : 15; // what a screen shows at once
  const ask = async () => {
    const skip = [...new Set([...unsent(), ...[...seen].slice(-1500)])];
    return (await call("/api/next", { tab, count, skip, one_class: true, ...filters() })).json();
  };
  try {
    const reply = await insist(ask, () => mine === turn, stalled);
    if (mine === turn) showGrid(reply.questions);
    else if (reply) release(reply.questions);
  } catch (error) { if (mine === turn) stopped(error); }
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

function turnTile(at) {
  const cycle = grid.negative ? [1, -1, 0] : [-1, 1, 0];
  grid.values[at] = cycle[(cycle.indexOf(grid.values[at]) + 1) % 3];
  drawTile(at);
}

function saveGrid() {
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

// ---- galleries

const SAID = {
  missing: ["Likely missing", "Nobody has said whether these are there, and the model thinks they may be; likeliest first. Is the class there?"],
  wrong: ["Likely wrong", "Labels that the model contradicts; either may be right. Yes: it is there. No: it is not."],
};

async function openGallery(more = false) {
  const mine = ++turn;
  letGo();
  // Answered entries leave the list, so the next ones begin after those that are still open.
  const shown = more ? [...$("gallery-tiles").querySelectorAll(".card")] : [];
  const start = shown.filter((tile) => !tile.dataset.value).length;
  const query = new URLSearchParams({ kind: view, label: $("filter-class").value, start: String(start), count: "24" });
  try {
    const found = await insist(async () => (await call(`/api/gallery?${query}`)).json(), () => mine === turn, stalled);
    if (mine !== turn) return;
    const [title, said] = SAID[view];
    $("gallery-title").textContent = title;
    $("gallery-said").textContent = found.total ? said : "None was found: there is nothing to check here.";
    const cards = found.items.map(card);
    if (more) $("gallery-tiles").append(...cards);
    else $("gallery-tiles").replaceChildren(...cards);
    $("gallery-more").hidden = found.total <= start + found.items.length;
    showOnly("view-gallery");
    if (more) cards[0]?.firstChild.focus();
  } catch (error) { if (mine === turn) stopped(error); }
}

function card(question) {
  const picture = el("img", { class: "pic", alt: `Photo ${question.name}`, draggable: "false" });
  small(question).then((url) => { picture.src = url; }, () => {
    picture.replaceWith(el("span", { class: "pic gone" }, `${question.name} cannot be shown`));
    for (const button of row.querySelectorAll(".yes, .no")) button.disabled = true;
  });
  const made = el("div", { class: "tile card", tabindex: "0", "data-entry": String(question.entry), role: "group" });
  made.setAttribute("aria-label", `${question.class} in ${question.name}`);
  const state = question.label > 0 ? "labelled present" : question.label < 0 ? "labelled absent" : "unknown";
  const seenIn = question.held_out ? "held out" : "trained on";
  const about = el("div", { class: "about" }, el("b", {}, question.class),
    el("span", {}, `${state}, ${seenIn}`), el("br"), el("span", {}, opinion(question)));
  const row = el("div", { class: "row" });
  for (const [value, word, kind] of [[1, "Yes", "yes"], [-1, "No", "no"], [0, "?", "unsure"]]) {
    const button = el("button", { type: "button", class: kind, "data-value": String(value), "aria-pressed": "false" }, word);
    if (value === 0) button.setAttribute("aria-label", "Unsure");
    button.addEventListener("click", () => answerCard(made, question, value));
    row.append(button);
  }
  made.append(picture, el("span", { class: "mark" }), about, row);
  made.question = question;
  return el("li", {}, made);
}

function markCard(tile, value) {
  tile.dataset.value = value === null ? "" : String(value);
  tile.querySelector(".mark").textContent = value === null ? "" : WORDS.get(value);
  for (const button of tile.querySelectorAll(".row button")) {
    toggle(button, value !== null && button.dataset.value === String(value));
  }
}

function answerCard(tile, question, value) {
  if (!isReady() || tile.dataset.value === String(value)) return;
  if (tile.querySelector(`.row [data-value="${value}"]`).disabled) return say("There is no photo to judge.");
  markCard(tile, value);
  answer([question], [value]);
  say(`${brief(question.class)}: ${WORDS.get(value)}.`);
}

// ---- views and keys

function showOnly(id) {
  for (const name of ["view-one", "view-grid", "view-gallery", "view-none"]) $(name).hidden = name !== id;
}

function open(name) {
  view = name;
  say(""); // what was said belongs to the view before
  for (const button of document.querySelectorAll("nav button")) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  for (const part of document.querySelectorAll(".asks")) part.hidden = name === "missing" || name === "wrong";
  restart();
}

function restart() {
  seen = new Set();
  dry = false;
  if (progress) showProgress(progress);
  if (view === "one") {
    letGo();
    advance();
  } else if (view === "grid") openGrid();
  else openGallery();
}

function step(tiles, key) {
  const at = tiles.findIndex((tile) => tile === document.activeElement || tile.contains(document.activeElement));
  if (at < 0) return tiles[0]?.focus();
  const columns = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length || 1;
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  tiles[Math.min(Math.max(at + move, 0), tiles.length - 1)].focus();
}

const KEYS = new Map([["y", 1], ["n", -1], ["u", 0]]);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.closest?.("select, input, textarea")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const place = { 1: "one", 2: "grid", 3: "missing", 4: "wrong" }[key];
  const tiles = () => [...document.querySelectorAll(`#view-${view === "grid" ? "grid" : "gallery"} .tile`)];
  let taken = true;
  if (event.repeat && (KEYS.has(key) || key === "Enter")) return event.preventDefault(); // a key held down is one answer
  if (KEYS.has(key) && view === "one") answerOne(KEYS.get(key));
  else if (KEYS.has(key) && view === "grid" && document.activeElement.matches("#grid-tiles .tile")) {
    const at = Number(document.activeElement.dataset.at);
    grid.values[at] = KEYS.get(key);
    drawTile(at);
  } else if (KEYS.has(key) && document.activeElement.matches(".card")) {
    answerCard(document.activeElement, document.activeElement.question, KEYS.get(key));
  } else if (key === "z" || key === "Backspace") undo();
  else if (key === "m" && view === "one") $("map").click();
  else if (key === "c" && view === "one") $("score").click();
  else if (key === "i" && view === "grid") $("grid-flip").click();
  else if (key === "Enter" && view === "grid" && !$("view-grid").hidden && !event.target.closest?.("button:not(.tile), a")) saveGrid();
  else if (key.startsWith("Arrow") && view !== "one") step(tiles(), key);
  else if (place) open(place);
  else if (key === "?") $("help").showModal();
  else taken = false;
  if (taken) event.preventDefault();
});

for (const button of document.querySelectorAll("#answers button")) {
  button.addEventListener("click", () => answerOne(Number(button.dataset.value)));
}
for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => open(button.dataset.view));
}
$("undo").addEventListener("click", undo);
$("grid-undo").addEventListener("click", undo);
$("grid-save").addEventListener("click", saveGrid);
$("grid-flip").addEventListener("click", () => { grid.negative = !grid.negative; startGrid(); });
$("gallery-more").addEventListener("click", () => openGallery(true));
$("help-close").addEventListener("click", () => $("help").close());
$("help-open").addEventListener("click", () => $("help").showModal());
$("map").addEventListener("click", () => {
  showsMap = !showsMap;
  toggle($("map"), showsMap);
  if (current) showMap(current);
});
$("score").addEventListener("click", () => {
  showsScore = !showsScore;
  toggle($("score"), showsScore);
  if (current) caption(current);
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("change", () => { $("main").focus({ preventScroll: true }); restart(); });
addEventListener("online", send);
setInterval(() => {
  const entries = [...queue, ...(current ? [current] : []), ...grid.questions].map((question) => question.entry);
  if (entries.length && !document.hidden) call("/api/hold", { tab, entries }).catch(() => {});
}, 30_000);

async function start() {
  if (!token) return stopped(new Refused("The address lacks its token. Open the one that the terminal shows."));
  // Side by side: the first question need not wait for the state.
  const first = advance();
  try {
    const state = await insist(async () => (await call("/api/state")).json(), () => true, stalled);
    hasMaps = state.maps;
    $("map").hidden = !hasMaps;
    $("title").textContent = state.run ? `Review: ${state.run}` : "Review";
    document.title = `${state.run || "halflabel"} · review`;
    showProgress(state);
    begin(state.project, showProgress);
  } catch (error) { stopped(error); }
  await first;
}

start();
