// The class filter: shows the rows, curves and photos of one class, its numbers, and the command that opens it in review.
const choice = document.querySelector("#class-filter");
if (choice) {
  const box = document.querySelector("#one-class");
  const rows = [...document.querySelectorAll("#classes tr[data-class]")];
  const make = (name, text, kind = "") => Object.assign(document.createElement(name), { textContent: text, className: kind });
  const quote = (name) => (/^[\w.,:@%+-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

  const describe = (row) => {
    const name = row.cells[0].title;
    const titles = [...row.closest("table").tHead.rows[0].cells].map((cell) => cell.textContent);
    const numbers = [...row.cells].slice(1).map((cell, index) => {
      const item = document.createElement("div");
      const value = document.createElement("dd");
      value.append(make("b", cell.textContent));
      item.append(make("dt", titles[index + 1]), value);
      return item;
    });
    const cards = make("dl", "", "cards");
    cards.append(...numbers);
    const command = make("p", "To answer questions about it: ", "muted");
    command.append(make("code", `halflabel review RUN PHOTOS --class ${quote(name)}`));
    const all = make("button", "All classes", "plain");
    all.type = "button";
    all.addEventListener("click", () => { choice.value = "-1"; show(); choice.focus(); });
    const title = make("h2", name, "name");
    box.replaceChildren(title, cards, command, all);
  };

  const show = () => {
    const chosen = choice.value;
    for (const part of document.querySelectorAll("[data-class]")) {
      part.toggleAttribute("data-off", chosen !== "-1" && part.dataset.class !== chosen);
    }
    box.hidden = chosen === "-1";
    if (chosen !== "-1") describe(rows.find((row) => row.dataset.class === chosen));
    document.dispatchEvent(new CustomEvent("classchange", { detail: chosen }));
  };

  choice.closest("label").hidden = false;
  choice.addEventListener("change", show);
  for (const row of rows) {
    const button = make("button", row.cells[0].textContent, "link");
    button.type = "button";
    button.addEventListener("click", () => {
      choice.value = row.dataset.class;
      show();
      box.scrollIntoView({ block: "start" });
    });
    row.cells[0].replaceChildren(button);
  }
  addEventListener("pageshow", () => { if (choice.value !== "-1") show(); }); // the browser keeps the choice of a reloaded page
}
