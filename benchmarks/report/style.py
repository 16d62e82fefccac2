"""The page's style sheet and its script (sorting of tables), both inside the page."""

from typing import Final

NARROW: Final = "(max-width: 40rem)"
CSS: Final = (
    """
:root { --paper: #ffffff; --ink: #1d232b; --soft: #5b6673; --line: #dfe3e8; --tint: #f5f7f9;
  --accent: #0b6bb8; --good: #0a7a52; --bad: #b3261e; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #15191e; --ink: #e6e9ed; --soft: #9aa5b1;
  --line: #2f3740; --tint: #1c2228; --accent: #6cb6f2; --good: #4cc38a; --bad: #ff8a80; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 80rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Liberation Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; margin: 3.2rem 0 .4rem; letter-spacing: -.01em; }
p { margin: .5rem 0; max-width: 46rem; }
.lede, .say, figcaption, footer { color: var(--soft); }
.lede { font-size: 1.06rem; }
nav { margin: 1rem 0 0; font-size: .9rem; }
nav a { color: var(--accent); margin-right: 1.1rem; text-decoration: none;
  display: inline-block; }
nav a:hover { text-decoration: underline; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr));
  gap: .9rem; margin: 1.6rem 0 .6rem; }
.tile { background: var(--tint); border: 1px solid var(--line); border-radius: .6rem;
  padding: .9rem 1.1rem 1rem; break-inside: avoid; }
.tile h3 { margin: 0; font-size: .86rem; font-weight: 600; color: var(--soft); }
.tile .big { font-size: 2.1rem; font-weight: 650; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
.tile .big small { font-size: 1.05rem; font-weight: 500; margin-left: .18em; }
.tile p { margin: .1rem 0 0; font-size: .86rem; line-height: 1.4; color: var(--soft); }
.tile b { color: var(--ink); }
.warn { border-left: 4px solid var(--bad); background: var(--tint); padding: .6rem 1rem;
  border-radius: 0 .4rem .4rem 0; max-width: none; }
.scroll { overflow-x: auto; background:
  linear-gradient(to left, var(--paper) 50%, transparent) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(to left, rgb(128 128 128 / .3), transparent) 100% 0 / 1rem 100% no-repeat; }
table { border-collapse: collapse; font-size: .85rem; line-height: 1.35;
  font-variant-numeric: tabular-nums lining-nums; min-width: 60%; }
th, td { padding: .34rem .6rem; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: .2rem; }
thead th { max-width: 8rem; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
th.n, td.n { text-align: right; } td.n { white-space: nowrap; }
td.t { white-space: nowrap; }
td.wide { min-width: 22rem; }
td .f { display: inline-block; text-align: left; }
.f1 { min-width: 1ch; } .f2 { min-width: 2ch; } .f3 { min-width: 3ch; } .f4 { min-width: 4ch; }
.f5 { min-width: 5ch; } .f6 { min-width: 6ch; } .f7 { min-width: 7ch; } .f8 { min-width: 8ch; }
tbody tr:hover { background: var(--tint); }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.mark { display: inline-block; font-size: .78rem; padding: 0 .45em; border-radius: .7em;
  border: 1px solid var(--line); color: var(--soft); white-space: nowrap; }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
figure { margin: 1rem 0; }
figure img { display: block; max-width: 100%; height: auto; border-radius: .3rem; }
figcaption { font-size: .86rem; max-width: 46rem; margin-top: .5rem; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
li { margin: .3rem 0; max-width: 46rem; }
ul.legend { list-style: none; padding: 0; margin: 0; font-size: .86rem; color: var(--soft); }
ul.legend li { max-width: none; margin: .1rem 0; } ul.legend b { color: var(--ink); }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .8rem;
  font-size: .86rem; }
@media """
    + NARROW
    + """ { body { padding: 1.4rem .8rem 3rem; } h1 { font-size: 1.6rem; }
  figure img { width: 100%; max-width: 30rem; }
  th, td { padding: .3rem .45rem; } td .mark { display: block; width: max-content; }
  th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper); } }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --tint: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  .scroll { overflow: visible; } table { font-size: 7.5pt; } th, td { padding: .2rem .4rem; }
  h2 { break-after: avoid; } figure:has(img), tr { break-inside: avoid; } }
"""
)

SCRIPT: Final = """
document.querySelectorAll("table").forEach(function (table) {
  table.querySelectorAll("thead th").forEach(function (head, column) {
    var button = document.createElement("button");
    button.type = "button"; button.title = "sort";
    while (head.firstChild) { button.appendChild(head.firstChild); }
    head.appendChild(button);
    button.addEventListener("click", function () {
      var up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach(function (h) { h.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var body = table.tBodies[0], rows = Array.from(body.rows);
      function key(row) {
        var cell = row.cells[column], value = cell.dataset.v;
        return value === undefined ? cell.textContent : value === "" ? null : Number(value);
      }
      rows.sort(function (a, b) {
        var x = key(a), y = key(b);
        if (x === null || y === null) { return (x === null) - (y === null); }
        var order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
        return up ? order : -order;
      });
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
});
"""
