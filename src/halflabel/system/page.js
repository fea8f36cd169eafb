"use strict";
// Click on a column's title to sort by it, once more to turn the order round. What has no value stays at the end.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = column > 0;
      const before = head.getAttribute("aria-sort");
      const order = before ? (before === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => (numeric ? row.cells[column].dataset.v : row.cells[column].title);
      const rows = [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (!numeric) return sign * x.localeCompare(y, undefined, { numeric: true });
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (Number(x) - Number(y));
      });
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      body.append(...rows);
    });
  });
}
// Precision and recall at the threshold of a slider, from counts in the page.
for (const box of document.querySelectorAll(".thresholds")) {
  const counts = JSON.parse(box.dataset.counts);
  const [choice, slider] = [box.querySelector("select"), box.querySelector("input")];
  const show = () => {
    const at = Number(slider.value);
    const chosen = choice.value === "-1" ? counts : [counts[Number(choice.value)]];
    const sum = (key, step) => chosen.reduce((total, row) => total + row[key][step], 0);
    const [hits, wrong, present] = [sum("hits", at), sum("false", at), sum("hits", 0)];
    const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : "—");
    box.querySelector("output").textContent = (at / 100).toFixed(2);
    box.querySelector(".result").textContent = `Precision ${share(hits, hits + wrong)}: ${hits} of ${hits + wrong} known labels called present are right. `
      + `Recall ${share(hits, present)}: ${hits} of ${present} known positives are found.`;
  };
  choice.addEventListener("change", () => {
    if (choice.value !== "-1") slider.value = String(Math.round(100 * counts[Number(choice.value)].threshold));
    show();
  });
  slider.addEventListener("input", show);
  show();
}
// A click on a photo enlarges it.
const photos = document.querySelectorAll(".tile svg.photo");
if (photos.length) {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged";
  dialog.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  for (const photo of photos) {
    const open = () => {
      const tile = photo.closest(".tile");
      const copy = photo.cloneNode(true);
      copy.querySelector(".map")?.remove();
      copy.removeAttribute("tabindex");
      dialog.replaceChildren(copy, tile.querySelector("figcaption")?.cloneNode(true) ?? "");
      dialog.showModal();
    };
    photo.setAttribute("tabindex", "0");
    photo.addEventListener("click", open);
    photo.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
  }
}
