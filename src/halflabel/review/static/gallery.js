// Two galleries: labels that are likely missing, and labels that are likely wrong.
import { $, WORDS, brief, el, newTurn, say, showOnly, toggle, view } from "/screen.js";
import { answer, call, insist, isReady, small } from "/talk.js";
import { opinion, stalled, stopped } from "/list.js";

const SAID = {
  missing: ["Likely missing", "Nobody has said whether these are there, and the model thinks they may be; likeliest first. Is the class there?"],
  wrong: ["Likely wrong", "Labels that the model contradicts; either may be right. Yes: it is there. No: it is not."],
};

export async function openGallery(more = false) {
  const mine = newTurn();
  // Answered entries leave the list, so the next ones begin after those that are still open.
  const shown = more ? [...$("gallery-tiles").querySelectorAll(".card")] : [];
  const start = shown.filter((tile) => !tile.dataset.value).length;
  const query = new URLSearchParams({ kind: view, label: $("filter-class").value, start: String(start), count: "24" });
  try {
    const found = await insist(async () => (await call(`/api/gallery?${query}`)).json(), mine, stalled);
    if (!mine()) return;
    const [title, said] = SAID[view];
    $("gallery-title").textContent = title;
    $("gallery-said").textContent = found.total ? said : "None was found: there is nothing to check here.";
    const cards = found.items.map(card);
    if (more) $("gallery-tiles").append(...cards);
    else $("gallery-tiles").replaceChildren(...cards);
    $("gallery-more").hidden = found.total <= start + found.items.length;
    showOnly("view-gallery");
    if (more) cards[0]?.firstChild.focus();
  } catch (error) { if (mine()) stopped(error); }
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

/** Whether a card was there to take the answer. */
export function answerFocused(value) {
  const tile = document.activeElement;
  if (!tile.matches(".card")) return false;
  answerCard(tile, tile.question, value);
  return true;
}

export function putBackCards(questions) {
  for (const question of questions) {
    const tile = document.querySelector(`.card[data-entry="${question.entry}"]`);
    if (tile) markCard(tile, null);
  }
}

$("gallery-more").addEventListener("click", () => openGallery(true));
