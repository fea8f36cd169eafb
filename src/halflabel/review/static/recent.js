// The last ten answers of this tab, which can be changed.
import { $, ANSWER_WORDS, announce, el, toggle } from "/screen.js";
import { answer, onAnswers, recentAnswers, smallPhoto } from "/connection.js";

const MOST = 10;

function show() {
  const items = recentAnswers(MOST);
  $("recent").hidden = !items.length;
  const focused = document.activeElement.closest("#recent-list button")?.getAttribute("aria-label");
  $("recent-list").replaceChildren(...items.map(({ question, value }) => {
    const picture = el("img", { class: "thumb", alt: "", draggable: "false" });
    smallPhoto(question).then((url) => { picture.src = url; }, () => {});
    const buttons = [[1, "yes", "Yes"], [-1, "no", "No"], [0, "unsure", "?"]].map(([kind, name, word]) => {
      const button = el("button", { type: "button", class: name, "aria-label": `${question.class} in ${question.name}: ${ANSWER_WORDS.get(kind)}` }, word);
      toggle(button, kind === value);
      button.addEventListener("click", () => {
        if (kind === value) return;
        answer([question], [kind], true);
        announce(`Changed: ${question.class} in ${question.name}, ${ANSWER_WORDS.get(kind)}.`);
      });
      return button;
    });
    return el("li", {}, picture, el("span", {}, question.class), el("span", { class: "row" }, ...buttons));
  }));
  if (focused) $("recent-list").querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

onAnswers(show);
