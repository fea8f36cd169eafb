// The model that learns during the review: what changed, a curve over the answers, and the buttons learn, export and finish.
import { $, announce, el } from "/screen.js";
import { call, reason } from "/connection.js";

const ENOUGH = 20; // random checks from which on estimates are shown
const FLAT_ANSWERS = 100; // answers over which hardly anything changed before the page proposes to finish

let known = -1; // the version of the fit that the page shows
let timer = 0;
let onUpdate = () => {}; // called when there are new questions

const number = (value) => Math.round(value).toLocaleString("en");
const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** Start following the model; `listener` is called when new questions are there. */
export function startLive(state, listener) {
  onUpdate = listener;
  document.body.classList.add("is-live");
  $("live").hidden = false;
  $("quality-box").hidden = true;
  follow(state);
}

/** Take the short state that comes with every reply; fetch the rest if the model was fitted since. */
export function follow(state) {
  if (!state) return;
  showState(state);
  if (state.version !== known) refresh();
  clearTimeout(timer);
  const busy = state.fitting || (state.finish && !state.finish.result);
  timer = setTimeout(poll, busy ? 700 : 15_000);
}

async function poll() {
  try { follow(await (await call("/api/live")).json()); } catch { timer = setTimeout(poll, 4000); }
}

async function refresh() {
  try {
    const state = await (await call("/api/live")).json();
    const isFirst = known < 0;
    const changed = state.version !== known;
    known = state.version;
    if (!state.quality) return;
    showQuality(state);
    if (changed && !isFirst) announce(`The model has learned from ${number(state.quality.answers)} answers.`);
    if (changed && state.version > 0) onUpdate(isFirst);
  } catch { /* the next reply tries again */ }
}

function showState(state) {
  const text = state.error ? `The model cannot learn: ${state.error}. Your answers are saved.`
    : state.fitting ? (known > 0 ? "Learning from your answers…" : "Getting the model ready…")
      : state.left > 1 ? `Learns again after ${state.left} more answers.` : "Learns again after the next answer.";
  $("live-state").textContent = text;
  $("live").classList.toggle("fitting", state.fitting);
  $("live-learn").disabled = state.fitting || Boolean(state.error);
  showFinish(state.finish);
}

// ---- what the model knows by now

function showQuality({ quality, history, classes, precision }) {
  const first = history.find((point) => point.controls >= ENOUGH && point.answers < quality.answers); // earlier ones are no estimates
  const enough = quality.controls >= ENOUGH;
  $("live-classes").hidden = false;
  const found = classes.filter((row) => row.present > 0).length;
  $("live-answers").textContent = `${number(quality.answers)} ${quality.answers === 1 ? "answer" : "answers"}; found ${found} of ${classes.length} classes`;
  $("live-decided").hidden = !enough;
  $("live-decided").replaceChildren(
    el("strong", {}, number(quality.decided)),
    ` of ${number(quality.unknown)} open labels can be decided`,
    el("span", { class: "muted" }, ` ${percent(precision)} sure or more${first ? `; ${number(first.decided)} after ${number(first.answers)} answers` : ""}`),
  );
  $("live-map").hidden = !enough;
  if (enough) {
    const [value, low, high] = quality.mean_average_precision;
    $("live-map").replaceChildren(el("strong", {}, percent(value)), " estimated mAP, ",
      `${percent(low)} to ${percent(high)}`, el("span", { class: "muted" }, " how well photos of a class rank above the others"));
  }
  $("live-precision").hidden = !enough || !quality.precision;
  if (enough && quality.precision) {
    const [value, low, high] = quality.precision;
    $("live-precision").replaceChildren(el("strong", {}, percent(value)), " of what it calls present is present, ",
      `${percent(low)} to ${percent(high)}`, el("span", { class: "muted" }, " among labels nobody has given"));
  }
  $("live-basis").textContent = enough
    ? `From ${quality.controls} random checks; questions that the model picked do not count. Intervals: 95 %.`
    : `How good is the model? Random checks among the questions tell: ${quality.controls} of ${ENOUGH} when it last learned.`;
  drawCurve(enough ? history.filter((point) => point.controls >= ENOUGH / 2) : []);
  showAdvice(history);
  showClasses(classes);
}

function showAdvice(history) {
  const last = history[history.length - 1];
  const before = [...history].reverse().find((point) => point.answers <= last.answers - FLAT_ANSWERS);
  const isFlat = before && before.controls >= ENOUGH
    && last.decided - before.decided < 0.005 * last.unknown
    && last.mean_average_precision[0] - before.mean_average_precision[0] < 0.005;
  $("live-advice").hidden = !isFlat;
  $("live-advice").textContent = isFlat ? `The last ${last.answers - before.answers} answers changed little: a good moment to finish.` : "";
  $("live-finish").className = isFlat ? "save" : "quiet";
}

function shape(name, attributes) {
  const element = document.createElementNS($("live-curve").firstElementChild.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Draw the estimated mAP over the answers, with its interval. */
function drawCurve(points) {
  $("live-curve").hidden = points.length < 2;
  if (points.length < 2) return;
  const width = 228;
  const height = 76;
  const from = points[0].answers;
  const span = Math.max(points[points.length - 1].answers - from, 1);
  const x = (point) => (4 + (width - 8) * (point.answers - from) / span).toFixed(1);
  const values = points.flatMap((point) => point.mean_average_precision);
  const bottom = Math.max(0, Math.min(...values) - 0.05);
  const range = Math.min(1, Math.max(...values) + 0.05) - bottom;
  const y = (share) => (height - 4 - (height - 8) * (share - bottom) / range).toFixed(1);
  const line = points.map((point) => `${x(point)},${y(point.mean_average_precision[0])}`).join(" ");
  const band = [...points.map((point) => `${x(point)},${y(point.mean_average_precision[2])}`),
    ...[...points].reverse().map((point) => `${x(point)},${y(point.mean_average_precision[1])}`)].join(" ");
  const last = points[points.length - 1];
  const picture = $("live-curve").firstElementChild;
  picture.setAttribute("aria-label", `Estimated mAP from ${percent(points[0].mean_average_precision[0])} to ${percent(last.mean_average_precision[0])}`);
  picture.replaceChildren(shape("polygon", { points: band, class: "band" }), shape("polyline", { points: line, class: "line" }),
    shape("circle", { cx: x(last), cy: y(last.mean_average_precision[0]), r: 3.5, class: "dot" }));
  $("live-curve").lastElementChild.textContent = `Estimated mAP, ${number(from)} to ${number(last.answers)} answers`;
}

function showClasses(classes) {
  const rows = classes.map((row) => {
    const share = row.unknown ? row.decided / row.unknown : 1;
    return el("tr", {}, el("th", { scope: "row" }, row.name), el("td", {}, number(row.present)),
      el("td", {}, number(row.absent)), el("td", {}, `≈ ${number(row.expected)}`), el("td", {}, percent(share)));
  });
  const head = ["class", "yes", "no", "photos", "decided"].map((name) => el("th", { scope: "col" }, name));
  $("live-table").replaceChildren(el("caption", {}, "Known yes and no; photos with the class, estimated; open labels the model can decide"), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}

// ---- buttons

$("live-learn").addEventListener("click", () => {
  call("/api/live/fit", {}).then(async (reply) => { announce("Learning from your answers."); follow(await reply.json()); })
    .catch((error) => announce(reason(error)));
});

$("live-export").addEventListener("click", async () => {
  try {
    const url = URL.createObjectURL(await (await call("/api/labels")).blob());
    const link = el("a", { href: url, download: "answers.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    announce("Your answers are in answers.csv.");
  } catch (error) { announce(reason(error)); }
});

$("live-finish").addEventListener("click", () => $("finish").showModal());
$("finish-close").addEventListener("click", () => $("finish").close());
$("finish-start").addEventListener("click", async () => {
  $("finish-start").disabled = true;
  try { follow(await (await call("/api/live/finish", {})).json()); } catch (error) {
    $("finish-state").textContent = reason(error);
    $("finish-start").disabled = false;
  }
});

function showFinish(finish) {
  if (!finish) return;
  const { step, result } = finish;
  $("finish-start").disabled = !result;
  $("finish-result").hidden = !result;
  if (!result) {
    $("finish-state").textContent = `Working: ${step}…`;
    $("live-state").textContent = `Finishing: ${step}…`;
    return;
  }
  if (result.error) {
    $("finish-state").textContent = result.error;
    $("finish-result").hidden = true;
    return;
  }
  const parts = [["New run", result.run], ["Filled labels", result.filled], ["Report", result.report]];
  $("finish-state").textContent = `Done. The new model learned from ${number(result.answers)} answers`
    + `${result.filled ? ` and filled ${number(result.filled_labels)} labels` : ""}.${result.note ? ` ${result.note}` : ""}`;
  $("finish-result").replaceChildren(...parts.filter(([, path]) => path)
    .flatMap(([name, path]) => [el("dt", {}, name), el("dd", {}, el("code", {}, path))]));
  $("finish-start").textContent = "Finish again";
}
