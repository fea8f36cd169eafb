// One question at a time, those after it fetched before they are needed.
import { $, WORDS, brief, el, newTurn, say, showOnly, title, toggle } from "/screen.js";
import { Refused, answer, insist, isReady, large, photo, reason } from "/talk.js";
import { ask, finished, opinion, release, seen, stalled, stopped } from "/list.js";

const AHEAD = 8; // questions fetched before they are needed, with their photos

let current = null; // the question shown
let queue = []; // those after it
let filling = null;
let failing = null; // why the questions last asked for have not come yet
let dry = false; // nothing left for these filters
let list = 0; // goes up when other questions are wanted; not with each question, which may be quicker than the server
let hasMaps = false;
let showsMap = false;
let showsScore = false;

/** The questions that this page has for this view. */
export const heldByOne = () => [...queue, ...(current ? [current] : [])];

export function dropOne() {
  list += 1;
  filling = null;
  failing = null;
  dry = false;
  queue = [];
  current = null;
}

export function putBackOne(questions) {
  queue.unshift(...questions, ...(current ? [current] : []));
  current = null;
  advance();
}

async function fill() {
  if (filling || dry) return filling;
  const mine = list;
  const failed = (error) => {
    failing = error;
    if (!queue.length && !current) stalled(error);
  };
  const asked = insist(() => ask(AHEAD, heldByOne().map((question) => question.entry)), () => mine === list, failed)
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

export async function advance() {
  const mine = newTurn();
  if (!queue.length) {
    $("stage").setAttribute("aria-busy", "true");
    if (failing) stalled(failing);
    await fill();
    if (!mine() || (!queue.length && !dry)) return; // told already why
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
    const url = await insist(() => large(question), mine, waits);
    if (!mine()) return;
    const alt = `Photo ${question.name}`;
    $("photo").replaceChildren(el("img", { src: url, alt, draggable: "false" }));
    if (showsMap) showMap(question);
  } catch (error) {
    if (!mine()) return;
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

export function answerOne(value) {
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

// ---- what the model thinks

export function offerMaps(has) {
  hasMaps = has;
  $("map").hidden = !has;
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

for (const button of document.querySelectorAll("#answers button")) {
  button.addEventListener("click", () => answerOne(Number(button.dataset.value)));
}
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
