// The sliders of the report. It reads the JSON that the page carries, writes text only (never markup), and asks nobody for anything.
"use strict";
(() => {
  const given = document.getElementById("what-if-data");
  if (!given) return;
  const { legs } = JSON.parse(given.textContent);
  const panel = document.getElementById("answer");
  const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const OUT_OF_REACH = 255;

  const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const edgeOf = (leg, cut, at) => leg.signals[cut.signal].edges[at];
  const goes = (cut, bin, at) => bin !== OUT_OF_REACH && (cut.side === "low" ? bin <= at : bin > at);
  const shown = (value) => (Number.isInteger(value) ? number.format(value) : String(value));
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "\u2212" : "\u00b1") + number.format(Math.abs(value));
  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(1) + "%" : "\u2013");

  for (const leg of legs) {
    leg.position = leg.cuts.map((cut) => cut.at);
    leg.gone = bytesOf(leg.sample.gone);
    leg.bins = leg.sample.bins.map(bytesOf);
    leg.group = leg.sample.groups.flatMap((rows, group) => Array(rows).fill(group));
  }

  // One threshold moved: exact, from counts of what all else keeps.
  function exact(leg, k) {
    const cut = leg.cuts[k];
    return leg.sources.map((_, group) => {
      const side = (counts) => {
        let sum = 0;
        counts.forEach((count, bin) => { if (!goes(cut, bin, leg.position[k])) sum += count; });
        return sum;
      };
      return {
        documents: cut.free[group][0] + side(cut.documents[group]), documentsError: 0,
        weight: cut.free[group][1] + side(cut.weights[group]), weightError: 0,
      };
    });
  }

  // Several at once: what is known of now, and by how much the sample changes; its error is that of the change, without what was counted whole.
  function sampled(leg) {
    const changes = leg.sources.map(() => ({ sum: 0, squares: 0, weight: 0, weightSquares: 0 }));
    for (let row = 0; row < leg.group.length; row++) {
      if (leg.gone[row]) continue;
      const before = leg.cuts.every((cut, k) => !goes(cut, leg.bins[k][row], cut.at));
      const after = leg.cuts.every((cut, k) => !goes(cut, leg.bins[k][row], leg.position[k]));
      const change = after - before, weighed = change * leg.sample.weights[row], into = changes[leg.group[row]];
      into.sum += change; into.squares += change * change; into.weight += weighed; into.weightSquares += weighed * weighed;
    }
    const grown = (sum, squares, rows, whole) => {
      if (!rows) return [0, 0];
      const mean = sum / rows, spread = rows > 1 ? Math.max(0, squares - rows * mean * mean) / (rows - 1) : 0;
      return [whole * mean, whole * Math.sqrt(spread / rows * (1 - rows / whole))];
    };
    return changes.map((its, group) => {
      const rows = leg.sample.groups[group], whole = leg.sample.sizes[group];
      const [documents, documentsError] = grown(its.sum, its.squares, rows, whole);
      const [weight, weightError] = grown(its.weight, its.weightSquares, rows, whole);
      return { documents: leg.stay[group][0] + documents, documentsError, weight: leg.stay[group][1] + weight, weightError };
    });
  }

  const movedOf = (leg) => leg.cuts.map((_, k) => k).filter((k) => leg.position[k] !== leg.cuts[k].at);

  function answerOf(leg) {
    const moved = movedOf(leg);
    if (moved.length === 0) return leg.stay.map(([documents, weight]) => ({ documents, weight, documentsError: 0, weightError: 0 }));
    return moved.length === 1 ? exact(leg, moved[0]) : sampled(leg);
  }

  // The rule as a recipe writes it. JSON is YAML.
  function recipeLines(leg) {
    const rules = new Map();
    for (const k of movedOf(leg)) {
      const cut = leg.cuts[k];
      if (!rules.has(cut.stage)) rules.set(cut.stage, structuredClone(leg.rules[cut.stage]));
      const way = cut.field.split("."), last = way.pop();
      let place = rules.get(cut.stage).settings;
      for (const step of way) place = place[step] ??= {};
      place[last] = edgeOf(leg, cut, leg.position[k]);
    }
    return [...rules.values()].map(({ stage, settings }) => {
      const pairs = Object.entries(settings).map(([name, value]) => name + ": " + JSON.stringify(value));
      return "- " + stage + ": {" + pairs.join(", ") + "}";
    });
  }
  const tuneLine = (leg) => ["gristmill tune OUT"]
    .concat(movedOf(leg).map((k) => leg.cuts[k].stage + "." + leg.cuts[k].field + "=" + edgeOf(leg, leg.cuts[k], leg.position[k]))).join(" ");

  const element = (name, text, look) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (look) made.className = look;
    return made;
  };

  function render(leg) {
    const moved = movedOf(leg);
    panel.hidden = moved.length === 0;
    panel.replaceChildren();
    if (panel.hidden) return;
    const sums = answerOf(leg), weighed = leg.weight !== null;
    panel.append(element("h3", "What if"));
    const how = moved.length === 1 ? "One threshold moved: counted on all documents."
      : moved.length + " thresholds moved: estimated from " + number.format(leg.group.length) + " documents; \u00b1 is one standard error.";
    panel.append(element("p", how, "soft"));
    const table = element("table"), head = element("tr"), body = element("tbody");
    for (const name of ["source", "documents now", "then", "", ...(weighed ? [leg.weight + " now", "then", ""] : [])]) {
      const cell = element(name === "" ? "td" : "th", name, name === "source" ? "" : "n");
      if (name) cell.scope = "col";
      head.append(cell);
    }
    const row = (name, now, its) => {
      const line = element("tr"), label = element("th", name);
      label.scope = "row";
      line.append(label);
      const part = (before, after, error) => {
        line.append(element("td", number.format(before), "n"));
        const then = element("td", number.format(Math.round(after)) + (error ? " \u00b1 " + number.format(Math.ceil(error)) : ""), "n");
        then.dataset.then = String(Math.round(after));
        line.append(then, element("td", signed(Math.round(after - before)), "n soft"));
      };
      part(now[0], its.documents, its.documentsError);
      if (weighed) part(now[1], its.weight, its.weightError);
      body.append(line);
    };
    leg.sources.forEach((name, group) => row(name, leg.stay[group], sums[group]));
    if (leg.sources.length > 1) {
      const add = (pick) => sums.reduce((sum, its) => sum + pick(its), 0), now = (at) => leg.stay.reduce((sum, its) => sum + its[at], 0);
      row("all", [now(0), now(1)], {
        documents: add((its) => its.documents), documentsError: Math.sqrt(add((its) => its.documentsError ** 2)),
        weight: add((its) => its.weight), weightError: Math.sqrt(add((its) => its.weightError ** 2)),
      });
    }
    const top = element("thead"), scroll = element("div", undefined, "scroll");
    top.append(head);
    table.append(top, body);
    scroll.append(table);
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "What would stay");
    panel.append(scroll);
    const lines = element("pre", recipeLines(leg).join("\n") + "\n\n# to see which documents: " + tuneLine(leg));
    const reset = element("button", "Put back");
    reset.type = "button";
    reset.addEventListener("click", () => {
      leg.cuts.forEach((cut, k) => { leg.position[k] = cut.at; });
      document.querySelectorAll("input[data-cut]").forEach((input) => { if (legs[input.dataset.leg] === leg) { input.value = leg.cuts[input.dataset.cut].at; show(input); } });
      render(leg);
    });
    panel.append(element("p", "For the recipe:", "soft"), lines, reset);
  }

  // The slider's own line: its number, the line in the drawing and what is cut off.
  function show(input) {
    const leg = legs[input.dataset.leg], k = Number(input.dataset.cut), cut = leg.cuts[k], at = leg.position[k];
    const signal = leg.signals[cut.signal], value = signal.edges[at], place = signal.places[at];
    const slider = input.closest(".slider"), figure = input.closest("figure");
    slider.querySelector("output").textContent = shown(value);
    const sums = at === cut.at ? null : exact(leg, k);
    const now = leg.stay.reduce((sum, its) => sum + its[0], 0);
    const then = sums === null ? now : sums.reduce((sum, its) => sum + its.documents, 0);
    slider.querySelector(".moved").textContent = sums === null ? ""
      : "alone: " + number.format(then) + " stay (" + percent(then, leg.reach.reduce((sum, its) => sum + its[0], 0)) + "), " + signed(then - now);
    input.setAttribute("aria-valuetext", shown(value) + (sums === null ? "" : ", " + number.format(then) + " documents stay"));
    const order = [...figure.querySelectorAll("input[data-cut]")].indexOf(input), line = figure.querySelector(`[data-threshold="${order}"]`);
    const x = (100 * place).toFixed(2) + "%", rule = line.querySelector("line"), label = line.querySelector("text");
    rule.setAttribute("x1", x); rule.setAttribute("x2", x); label.setAttribute("x", x);
    label.setAttribute("text-anchor", place < 0.12 ? "start" : place > 0.88 ? "end" : "middle");
    label.textContent = (cut.side === "low" ? "\u2265 " : "\u2264 ") + shown(value);
    const shade = figure.querySelector(`[data-cut="${order}"]:not(input)`);
    shade.setAttribute("x", cut.side === "low" ? 0 : 1000 * place);
    shade.setAttribute("width", cut.side === "low" ? 1000 * place : 1000 - 1000 * place);
  }

  document.querySelectorAll("input[data-cut]").forEach((input) => {
    input.value = legs[input.dataset.leg].cuts[input.dataset.cut].at; // a browser may remember where it was
    input.disabled = false;
    input.addEventListener("input", () => {
      const leg = legs[input.dataset.leg];
      leg.position[input.dataset.cut] = Number(input.value);
      show(input);
      render(leg);
    });
  });

  // A link to something folded opens it; print opens stages and what is short in them, for as long as it lasts.
  const open = (target) => { for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
  const follow = () => { const target = document.getElementById(decodeURIComponent(location.hash.slice(1))); if (target) { open(target); target.scrollIntoView(); } };
  window.addEventListener("hashchange", follow);
  if (location.hash) follow();
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.stage:not([open]), details.fold:not(.long):not([open])")];
    opened.forEach((its) => { its.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((its) => { its.open = false; }));
})();
