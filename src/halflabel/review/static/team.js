// Several people: the name of the person, how two people agree, and the number of conflicts.
import { $, el } from "/screen.js";
import { call, reviewer, setReviewer } from "/connection.js";

const ENOUGH = 20; // double answers from which on agreement is shown

let changes = 0; // of the answers that several people gave, as far as the page shows them
let onName = () => {}; // called when another person answers from now on

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const kappa = (value) => (value === null ? "—" : value.toFixed(2));

/** Show who answers, or ask for the name; `listener` is called when the name changes. */
export function startTeam(state, listener) {
  onName = listener;
  followTeam(state);
  if (!state.asks_name) return;
  $("name").hidden = false;
  if (!reviewer) return askName();
  $("name").textContent = reviewer;
}

function askName() {
  $("name-input").value = reviewer;
  $("name-dialog").showModal();
}

$("name").addEventListener("click", askName);
$("name-dialog").addEventListener("close", () => {
  const name = $("name-input").value.trim();
  if (!name) return reviewer || askName(); // answers need a name
  if (name === reviewer) return;
  setReviewer(name);
  $("name").textContent = name;
  onName();
});

/** Take the progress that comes with every reply; fetch the agreement if it has changed. */
export async function followTeam({ shared_changes: newest }) {
  if (newest === undefined || newest === changes) return;
  changes = newest;
  try { showAgreement(await (await call("/api/agreement")).json()); } catch { changes = 0; /* the next reply tries again */ }
}

function showAgreement({ all, classes, people, conflicts }) {
  $("conflicts-open").hidden = !conflicts && !all;
  $("conflicts-open").textContent = conflicts ? `Conflicts (${conflicts})` : "Conflicts";
  $("team").hidden = !all;
  if (!all) return;
  const enough = all.pairs >= ENOUGH;
  $("team-kappa").hidden = !enough;
  $("team-kappa").replaceChildren(el("strong", {}, `κ ${kappa(all.kappa)}`), ` ${percent(all.equal / all.pairs)} of ${all.pairs} double answers are equal`);
  $("team-text").textContent = enough
    ? "Cohen’s κ: 1 is full agreement, 0 is what chance alone gives. Unsure answers do not count."
    : `${all.pairs} of ${ENOUGH} questions answered by two people so far.`;
  const numbers = (names, rows) => [el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((cell) => el("td", {}, cell)))))];
  $("team-people").replaceChildren(el("caption", {}, "Expected errors, from double answers"), ...numbers(["person", "answers", "errors"],
    people.map((row) => [row.name, String(row.answers), row.error === null || !enough ? "—" : percent(row.error)])));
  $("team-classes").replaceChildren(el("caption", {}, "Agreement by class"), ...numbers(["class", "pairs", "equal", "κ"],
    classes.map((row) => [row.name, String(row.pairs), percent(row.equal / row.pairs), kappa(row.kappa)])));
}
