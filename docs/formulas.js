// Typeset the formulas of a page, which pymdownx.arithmatex has marked, with the KaTeX that the site has.
for (const formula of document.querySelectorAll(".arithmatex")) {
  const display = formula.tagName === "DIV";
  katex.render(formula.textContent.trim().slice(2, -2), formula, { displayMode: display, strict: false });
}
