// Fills the panel of a run that goes on, every few seconds while somebody looks. Everything is set as text, never as markup.
"use strict";
(() => {
  const every = 2000, panel = document.getElementById("live");
  let waiting = null, asking = false;
  const list = (at, lines) => at.replaceChildren(...lines.map((line) => { const item = document.createElement("li"); item.textContent = line; return item; }));

  const show = (told) => {
    if (told.state === "unreadable") return;
    if (!["running", "silent"].includes(told.state)) { location.reload(); return; }
    for (const [name, word] of Object.entries(told.words)) {
      const at = panel.querySelector(`[data-word="${name}"]`);
      if (at && at.textContent !== word) at.textContent = word;
    }
    const rows = document.getElementById("nodes").rows;
    if (rows.length !== told.nodes.length) { location.reload(); return; }
    told.nodes.forEach((node, index) => {
      rows[index].dataset.state = node.state;
      rows[index].querySelector("rect").setAttribute("width", node.share);
      for (const name of ["state", "parts", "seconds", "left_words"]) rows[index].querySelector(`[data-cell="${name}"]`).textContent = node[name];
    });
    const stages = document.getElementById("stages")?.rows ?? [];
    told.stages.slice(0, stages.length).forEach((stage, index) => {
      for (const name of ["docs_in", "kept", "lost", "quarantined", "gone"]) stages[index].querySelector(`[data-cell="${name}"]`).textContent = stage[name];
    });
    const alarms = document.getElementById("live-alarms");
    alarms.hidden = told.alarms.length === 0;
    list(alarms.querySelector("ul"), told.alarms);
    list(document.getElementById("live-notes"), told.notes);
  };

  const ask = async () => {
    waiting = null;
    if (asking || document.hidden) return;
    asking = true;
    try {
      const answer = await fetch("/live.json", { credentials: "same-origin", cache: "no-store" });
      if (answer.ok) show(await answer.json());
    } catch (gone) {
      panel.querySelector('[data-word="state"]').textContent = "is out of sight: gristmill explore has ended";
      return;
    } finally {
      asking = false;
    }
    waiting ??= setTimeout(ask, every);
  };

  document.addEventListener("visibilitychange", () => { if (!document.hidden && waiting === null) ask(); });
  waiting = setTimeout(ask, every);
})();
