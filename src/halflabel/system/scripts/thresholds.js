// Precision and recall at the threshold of a slider, from counts in the page.
for (const box of document.querySelectorAll(".thresholds")) {
  const counts = JSON.parse(box.dataset.counts);
  const slider = box.querySelector("input");
  let chosen = "-1";
  const show = () => {
    const at = Number(slider.value);
    const rows = counts.filter((row) => chosen === "-1" || String(row.column) === chosen);
    const sum = (key, step) => rows.reduce((total, row) => total + row[key][step], 0);
    const [hits, wrong, present] = [sum("hits", at), sum("false", at), rows.length ? sum("hits", 0) : 0];
    const bar = (name, part, whole, text) => {
      const meter = box.querySelector(`.${name}`);
      const share = whole ? `${(100 * part / whole).toFixed(1)} %` : "—";
      meter.querySelector("b").textContent = share;
      meter.querySelector("rect.value").setAttribute("width", whole ? 100 * part / whole : 0);
      meter.querySelector("small").textContent = text;
      return `${name} ${share}`;
    };
    const number = (value) => value.toLocaleString("en");
    box.querySelector("output").textContent = (at / 100).toFixed(2);
    const precision = bar("precision", hits, hits + wrong, `${number(hits)} of ${number(hits + wrong)} known labels called present are right`);
    const recall = bar("recall", hits, present, `${number(hits)} of ${number(present)} known positives are found`);
    slider.setAttribute("aria-valuetext", `${(at / 100).toFixed(2)}: ${precision}, ${recall}`);
  };
  document.addEventListener("classchange", (event) => {
    chosen = event.detail;
    const row = counts.find((item) => String(item.column) === chosen);
    slider.value = String(Math.round(100 * (row ? row.threshold : Number(box.dataset.start))));
    show();
  });
  slider.addEventListener("input", show);
  show();
}
