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
