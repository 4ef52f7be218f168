// The sliders of the report. It reads the JSON that the page carries, writes text only (never markup), and makes no requests.
"use strict";
(() => {
  const given = document.getElementById("what-if-data");
  if (!given) return;
  const { segments, where } = JSON.parse(given.textContent);
  const panel = document.getElementById("answer");
  const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const phone = window.matchMedia("(max-width: 40rem)");
  const OUT_OF_REACH = 255;

  const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const edgeOf = (segment, cut, at) => segment.signals[cut.signal].edges[at];
  const goes = (cut, bin, at) => bin !== OUT_OF_REACH && (cut.side === "low" ? bin <= at : bin > at);
  const taken = (cut, counts, at) => sum(counts.filter((_, bin) => goes(cut, bin, at)));
  const shown = (value) => (Number.isInteger(value) ? number.format(value) : String(value));
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") + number.format(Math.abs(value));
  const percent = (part, whole) => {
    const share = 100 * part / whole;
    return !whole ? "\u2013" : share > 0 && share < 0.05 ? "<0.1%" : share >= 99.95 && share < 100 ? ">99.9%" : share.toFixed(1) + "%";
  };
  // Three digits of what is estimated, with a sign before them; all digits of what is counted.
  const rough = (value) => { const unit = 10 ** Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1)) - 2); return Math.round(value / unit) * unit; };
  const amount = (segment, value) => (segment.tokens ? "~" + number.format(rough(value)) : number.format(Math.round(value)));
  const change = (segment, value) => (segment.tokens ? signed(rough(value)) : signed(Math.round(value)));

  // Behind how many bars a cut is drawn: documents at an upper limit stay, so that of whole numbers the line goes behind the limit's.
  for (const segment of segments) {
    for (const cut of segment.cuts) {
      const { edges, whole } = segment.signals[cut.signal];
      cut.stops = edges.length + 1;
      cut.bars = whole && cut.side === "high" ? 2 : 1;
    }
    segment.position = segment.cuts.map((cut) => cut.at);
    segment.gone = bytesOf(segment.sample.gone);
    segment.bins = segment.sample.bins.map(bytesOf);
    segment.group = segment.sample.groups.flatMap((rows, group) => Array(rows).fill(group));
    segment.called = segment.tokens ? "tokens" : segment.weight;
    if (segment.tokens) { // what documents weigh, as tokens
      segment.tokens.forEach((each, group) => {
        segment.stay[group][1] *= each;
        for (const cut of segment.cuts) { cut.free[group][1] *= each; cut.weights[group] = cut.weights[group].map((weight) => weight * each); }
      });
      segment.sample.weights = segment.sample.weights.map((weight, row) => weight * segment.tokens[segment.group[row]]);
    }
  }

  // One threshold moved: exact, from counts of what all else keeps.
  function exact(segment, k) {
    const cut = segment.cuts[k];
    return segment.sources.map((_, group) => {
      const side = (counts) => sum(counts.filter((_, bin) => !goes(cut, bin, segment.position[k])));
      return {
        documents: cut.free[group][0] + side(cut.documents[group]), documentsError: 0,
        weight: cut.free[group][1] + side(cut.weights[group]), weightError: 0,
      };
    });
  }

  // Several at once: what is known of now, and by how much the sample changes; its error is that of the change, without what was counted whole.
  function sampled(segment) {
    const changes = segment.sources.map(() => ({ sum: 0, squares: 0, weight: 0, weightSquares: 0 }));
    for (let row = 0; row < segment.group.length; row++) {
      if (segment.gone[row]) continue;
      const before = segment.cuts.every((cut, k) => !goes(cut, segment.bins[k][row], cut.at));
      const after = segment.cuts.every((cut, k) => !goes(cut, segment.bins[k][row], segment.position[k]));
      const change = after - before, weighed = change * segment.sample.weights[row], into = changes[segment.group[row]];
      into.sum += change; into.squares += change * change; into.weight += weighed; into.weightSquares += weighed * weighed;
    }
    const grown = (sum, squares, rows, whole) => {
      if (!rows) return [0, 0];
      const mean = sum / rows, spread = rows > 1 ? Math.max(0, squares - rows * mean * mean) / (rows - 1) : 0;
      return [whole * mean, whole * Math.sqrt(spread / rows * (1 - rows / whole))];
    };
    return changes.map((its, group) => {
      const rows = segment.sample.groups[group], whole = segment.sample.sizes[group];
      const [documents, documentsError] = grown(its.sum, its.squares, rows, whole);
      const [weight, weightError] = grown(its.weight, its.weightSquares, rows, whole);
      return { documents: segment.stay[group][0] + documents, documentsError, weight: segment.stay[group][1] + weight, weightError };
    });
  }

  const movedOf = (segment) => segment.cuts.map((_, k) => k).filter((k) => segment.position[k] !== segment.cuts[k].at);

  function answerOf(segment) {
    const moved = movedOf(segment);
    if (moved.length === 0) return segment.stay.map(([documents, weight]) => ({ documents, weight, documentsError: 0, weightError: 0 }));
    return moved.length === 1 ? exact(segment, moved[0]) : sampled(segment);
  }

  // The rule as a recipe writes it. JSON is YAML.
  function recipeLines(segment) {
    const rules = new Map();
    for (const k of movedOf(segment)) {
      const cut = segment.cuts[k];
      if (!rules.has(cut.stage)) rules.set(cut.stage, structuredClone(segment.rules[cut.stage]));
      const way = cut.field.split("."), last = way.pop();
      let place = rules.get(cut.stage).settings;
      for (const step of way) place = place[step] ??= {};
      place[last] = edgeOf(segment, cut, segment.position[k]);
    }
    return [...rules.values()].map(({ stage, settings }) => {
      const pairs = Object.entries(settings).map(([name, value]) => name + ": " + JSON.stringify(value));
      return "- " + stage + ": {" + pairs.join(", ") + "}";
    });
  }
  const tuneLine = (segment) => ["gristmill tune " + where]
    .concat(movedOf(segment).map((k) => segment.cuts[k].stage + "." + segment.cuts[k].field + "=" + edgeOf(segment, segment.cuts[k], segment.position[k]))).join(" ");

  const element = (name, text, look) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (look) made.className = look;
    return made;
  };

  // A table of numbers. Rows are lists: the name, then [words, look, plain number].
  function tableOf(look, caption, heads, rows) {
    const table = element("table", undefined, look), top = element("thead"), line = element("tr"), body = element("tbody");
    table.append(element("caption", caption, "unseen"));
    heads.forEach((name, column) => {
      const cell = element(name === "" ? "td" : "th", name, column ? "n" : "");
      if (name) cell.scope = "col";
      line.append(cell);
    });
    for (const [name, ...cells] of rows) {
      const row = element("tr"), label = element("th", name);
      label.scope = "row";
      row.append(label);
      for (const [text, its, then] of cells) {
        const cell = element("td", text, its);
        if (then !== undefined) cell.dataset.then = String(Math.round(then));
        row.append(cell);
      }
      body.append(row);
    }
    top.append(line);
    table.append(top, body);
    return table;
  }

  const folded = (title, open, ...parts) => {
    const made = element("details", undefined, "fold");
    made.append(element("summary", title), ...parts);
    made.open = open;
    return made;
  };
  let restOpen = !phone.matches;

  function render(segment) {
    const moved = movedOf(segment);
    panel.hidden = moved.length === 0;
    panel.replaceChildren();
    if (panel.hidden) return;
    const answer = answerOf(segment), weighed = segment.weight !== null;
    const count = (before, after, error) => [
      [number.format(before), "n"],
      [number.format(Math.round(after)) + (error ? " \u00b1 " + number.format(Math.ceil(error)) : ""), "n", after],
      [signed(Math.round(after - before)), "n soft"],
    ];
    const weigh = (before, after, error) => [
      [amount(segment, before), "n"],
      [amount(segment, after) + (error ? " \u00b1 " + number.format(rough(Math.ceil(error))) : ""), "n", after],
      [change(segment, after - before), "n soft"],
    ];
    const all = (pick) => sum(answer.map(pick)), now = (at) => sum(segment.stay.map((its) => its[at]));
    const wide = (pick) => Math.sqrt(sum(answer.map((its) => pick(its) ** 2)));
    const totals = [["documents", ...count(now(0), all((its) => its.documents), wide((its) => its.documentsError))]];
    if (weighed) totals.push([segment.called, ...weigh(now(1), all((its) => its.weight), wide((its) => its.weightError))]);

    const rows = sum(segment.sample.groups), whole = sum(segment.sample.sizes);
    const how = moved.length === 1 ? "One threshold moved, all documents counted."
      : rows === whole ? moved.length + " thresholds moved, all " + number.format(whole) + " documents counted."
      : moved.length + " thresholds moved, estimated from " + number.format(rows) + " of " + number.format(whole) + " documents; \u00b1 is one standard error.";
    const about = [how, segment.until, segment.tokens ? "Tokens are estimated." : ""].filter(Boolean).join(" ");
    const reset = element("button", "Put back");
    reset.type = "button";
    reset.addEventListener("click", () => {
      segment.cuts.forEach((cut, k) => { segment.position[k] = cut.at; });
      sliders.filter((its) => its.segment === segment).forEach(show);
      render(segment);
    });
    const top = element("div", undefined, "top");
    top.append(element("h3", "What if"), reset);
    panel.append(top, tableOf("total", "What would stay", ["", "now", "then", "change"], totals));

    const parts = [element("pre", recipeLines(segment).join("\n") + "\n\n# to see which documents: " + tuneLine(segment))];
    if (segment.sources.length > 1) {
      const order = segment.sources.map((_, group) => group);
      const moves = answer.map((its, group) => Math.abs(its.documents - segment.stay[group][0]));
      order.sort((one, other) => moves[other] - moves[one] || one - other);
      const lines = order.map((group) => [segment.sources[group],
        ...count(segment.stay[group][0], answer[group].documents, answer[group].documentsError),
        ...(weighed ? weigh(segment.stay[group][1], answer[group].weight, answer[group].weightError) : [])]);
      const heads = ["source", "documents now", "then", "change", ...(weighed ? [segment.called + " now", "then", "change"] : [])];
      const scrolled = element("div", undefined, "scroll");
      scrolled.append(tableOf("sources", "Sources that change most first", heads, lines));
      scrolled.tabIndex = 0;
      scrolled.setAttribute("role", "region");
      scrolled.setAttribute("aria-label", "By source");
      parts.push(scrolled);
    }
    const rest = folded(segment.sources.length > 1 ? "For the recipe, and by source" : "For the recipe", restOpen, ...parts);
    rest.addEventListener("toggle", () => { restOpen = rest.open; });
    panel.append(rest, element("p", about, "soft note"));
  }

  // All that hangs on a slider: its number, its line in the drawing, what is cut off, and what is said of it.
  function show(its) {
    const { segment, k, cut } = its, at = segment.position[k], value = edgeOf(segment, cut, at), place = (at + cut.bars) / cut.stops;
    const reach = sum(segment.reach.map(([documents]) => documents)), now = sum(segment.stay.map(([documents]) => documents));
    const takes = taken(cut, cut.reached, at), alone = sum(cut.documents.map((counts) => taken(cut, counts, at)));
    const then = sum(exact(segment, k).map(({ documents }) => documents));
    its.range.value = at + cut.bars;
    its.typed.value = value;
    its.says.textContent = "takes " + (cut.side === "low" ? "below " : "above ") + shown(value) + ": " + number.format(takes)
      + " (" + percent(takes, reach) + "), " + number.format(alone) + " of them alone";
    its.moved.textContent = at === cut.at ? "" : "moved alone: " + number.format(then) + " stay (" + percent(then, reach) + "), " + signed(then - now);
    its.range.setAttribute("aria-valuetext", shown(value) + (at === cut.at ? "" : ", " + number.format(then) + " documents stay"));
    const x = (100 * place).toFixed(2) + "%", rule = its.line.querySelector("line"), label = its.line.querySelector("text");
    rule.setAttribute("x1", x); rule.setAttribute("x2", x); label.setAttribute("x", x);
    label.setAttribute("text-anchor", place < 0.12 ? "start" : place > 0.88 ? "end" : "middle");
    label.textContent = (cut.side === "low" ? "\u2265 " : "\u2264 ") + shown(value);
    its.shade.setAttribute("x", cut.side === "low" ? 0 : 1000 * place);
    its.shade.setAttribute("width", cut.side === "low" ? 1000 * place : 1000 - 1000 * place);
  }

  const sliders = [...document.querySelectorAll("input[data-cut]")].map((range) => {
    const segment = segments[range.dataset.segment], k = Number(range.dataset.cut), box = range.closest(".slider"), figure = box.closest("figure");
    const order = [...figure.querySelectorAll(".slider")].indexOf(box);
    return {
      segment, k, cut: segment.cuts[k], range, typed: box.querySelector("[type=number]"), says: box.querySelector(".says"),
      moved: box.querySelector(".moved"), line: figure.querySelector(`[data-threshold="${order}"]`), shade: figure.querySelector(`rect[data-cut="${order}"]`),
    };
  });
  const nearest = (values, wanted) => values.reduce((best, value, at) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? at : best), 0);
  const KEYS = { ArrowDown: -1, ArrowUp: 1 };

  for (const its of sliders) {
    const { segment, k, range, typed, cut } = its, { edges } = segment.signals[cut.signal];
    const moveTo = (at) => {
      segment.position[k] = Math.max(0, Math.min(edges.length - 1, at));
      show(its);
      render(segment);
    };
    range.value = cut.at + cut.bars; // a browser may remember where it was
    typed.value = edges[cut.at];
    range.disabled = typed.disabled = false;
    range.addEventListener("input", () => moveTo(Number(range.value) - cut.bars));
    typed.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      moveTo(segment.position[k] + KEYS[event.key]);
    });
    typed.addEventListener("change", () => {
      const wanted = typed.value === "" ? NaN : Number(typed.value);
      moveTo(Number.isNaN(wanted) ? segment.position[k] : nearest(edges, wanted));
      if (!Number.isNaN(wanted) && edges[segment.position[k]] !== wanted) its.moved.textContent = shown(wanted) + " was not counted, the nearest is " + shown(edges[segment.position[k]]) + ". " + its.moved.textContent;
    });
  }

  // A link to something folded opens it.
  const open = (target) => { for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
  const follow = () => { const target = document.getElementById(decodeURIComponent(location.hash.slice(1))); if (target) { open(target); target.scrollIntoView(); } };
  window.addEventListener("hashchange", follow);
  if (location.hash) follow();
})();
