// What scrolls sideways can be reached and scrolled by keyboard.
function reachable() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset__table, .highlight, pre > code, .linenodiv"))
    if (box.scrollWidth > box.clientWidth && !box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0")
}
document.addEventListener("DOMContentLoaded", () => setTimeout(reachable, 100))
window.addEventListener("resize", reachable)
