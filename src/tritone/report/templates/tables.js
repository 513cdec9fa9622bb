"use strict";
// Columns sort by a click on their heading: numbers as numbers, rows without a value last either way.
for (const figure of document.querySelectorAll("figure.table")) {
  const body = figure.querySelector("tbody");
  if (!body) continue;
  const headings = [...figure.querySelectorAll("thead th")];
  const original = [...body.rows];
  headings.forEach((heading, index) => heading.querySelector("button").addEventListener("click", () => {
    const before = heading.getAttribute("aria-sort");
    const next = before === "none" ? "ascending" : before === "ascending" ? "descending" : "none";
    for (const each of headings) each.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", next);
    const rows = original.map((row) => ({ row, key: row.cells[index].dataset.sort ?? row.cells[index].textContent.trim() }));
    if (next !== "none") {
      const filled = rows.filter((each) => each.key !== "");
      const numeric = filled.every((each) => !Number.isNaN(Number(each.key)));
      const sign = next === "ascending" ? 1 : -1;
      rows.sort((a, b) => {
        if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "");
        return sign * (numeric ? Number(a.key) - Number(b.key) : a.key.localeCompare(b.key, undefined, { numeric: true }));
      });
    }
    body.append(...rows.map((each) => each.row));
  }));
  const filter = figure.querySelector(".filter input");
  if (!filter) continue;
  const shown = figure.querySelector(".filter output");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of original) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = words.length ? `${count} of ${original.length}` : "";
  });
}
