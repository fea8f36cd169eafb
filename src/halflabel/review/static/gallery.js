// Two galleries: labels that are likely wrong, and answers of two people that differ.
import { $, ANSWER_WORDS, shorten, el, startTurn, announce, showOnly, toggle, view } from "/screen.js";
import { answer, call, retry, isReady, smallPhoto } from "/connection.js";
import { modelOpinion, showWaiting, showStopped } from "/questions.js";

const TEXTS = {
  wrong: ["Likely wrong", "The model contradicts these labels (score: 0 surely absent, 1 surely present); either may be right. Is the class in the photo? Your answer replaces the label."],
  conflicts: ["Conflicts", "Two people gave different answers. Your answer settles it and holds against both; ? leaves the label unknown."],
};

export async function openGallery(more = false) {
  const isCurrent = startTurn();
  // Answered entries leave the list, so the next page starts after the tiles that are still open.
  const shown = more ? [...$("gallery-tiles").querySelectorAll(".card")] : [];
  const start = shown.filter((tile) => !tile.dataset.value).length;
  const query = new URLSearchParams({ kind: view, label: $("filter-class").value, start: String(start), count: "24" });
  try {
    const reply = await retry(async () => (await call(`/api/gallery?${query}`)).json(), isCurrent, showWaiting);
    if (!isCurrent()) return;
    const [title, text] = TEXTS[view];
    $("gallery-title").textContent = title;
    $("gallery-text").textContent = reply.total ? text : "There is nothing to check here.";
    const cards = reply.items.map(makeCard);
    if (more) $("gallery-tiles").append(...cards);
    else $("gallery-tiles").replaceChildren(...cards);
    $("gallery-more").hidden = reply.total <= start + reply.items.length;
    showOnly("view-gallery");
    announce(`${title}: ${reply.total === 1 ? "1 label" : `${reply.total} labels`}.`);
    if (more) cards[0]?.firstChild.focus();
  } catch (error) { if (isCurrent()) showStopped(error); }
}

function makeCard(question) {
  const picture = el("img", { class: "pic", alt: `Photo ${question.name}`, draggable: "false" });
  smallPhoto(question).then((url) => { picture.src = url; }, () => {
    picture.replaceWith(el("span", { class: "pic gone" }, `${question.name} cannot be shown`));
    for (const button of row.querySelectorAll(".yes, .no")) button.disabled = true;
  });
  const card = el("div", { class: "tile card", tabindex: "0", "data-entry": String(question.entry), role: "group" });
  card.setAttribute("aria-label", `${question.class} in ${question.name}`);
  const lines = question.answers?.map(({ who, value }) => `${who}: ${ANSWER_WORDS.get(value)}`) ?? [modelOpinion(question)];
  if (question.label) lines.unshift(question.label > 0 ? "labelled present" : "labelled absent");
  const about = el("div", { class: "about" }, el("b", {}, question.class), ...lines.map((line) => el("span", { class: "line" }, line)));
  card.setAttribute("aria-description", lines.join(", "));
  const row = el("div", { class: "row" });
  for (const [value, word, kind] of [[1, "Yes", "yes"], [-1, "No", "no"], [0, "?", "unsure"]]) {
    const button = el("button", { type: "button", class: kind, "data-value": String(value), "aria-pressed": "false" }, word);
    if (value === 0) button.setAttribute("aria-label", "Unsure");
    button.addEventListener("click", () => answerCard(card, question, value));
    row.append(button);
  }
  card.append(picture, el("span", { class: "mark" }), about, row);
  card.question = question;
  return el("li", {}, card);
}

function markCard(tile, value) {
  tile.dataset.value = value === null ? "" : String(value);
  tile.querySelector(".mark").textContent = value === null ? "" : ANSWER_WORDS.get(value);
  for (const button of tile.querySelectorAll(".row button")) {
    toggle(button, value !== null && button.dataset.value === String(value));
  }
}

function answerCard(tile, question, value) {
  if (!isReady() || tile.dataset.value === String(value)) return;
  if (tile.querySelector(`.row [data-value="${value}"]`).disabled) return announce("There is no photo.");
  markCard(tile, value);
  answer([question], [value]);
  announce(`${shorten(question.class)}: ${ANSWER_WORDS.get(value)}.`);
}

/** Answer the focused card; false if there is none. */
export function answerFocused(value) {
  const tile = document.activeElement;
  if (!tile.matches(".card")) return false;
  answerCard(tile, tile.question, value);
  return true;
}

export function restoreCards(questions) {
  for (const question of questions) {
    const tile = document.querySelector(`.card[data-entry="${question.entry}"]`);
    if (tile) markCard(tile, null);
  }
}

$("gallery-more").addEventListener("click", () => openGallery(true));
