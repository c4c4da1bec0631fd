"use strict";
/* What stands beside a board: counters, pseudo-code, the tensors and what they mean, the rules. */

const number = new Intl.NumberFormat("en");

/** The counters of a game, in the head of its board. */
class Counters {
  constructor(root, M) {
    this.M = M;
    this.values = {};
    root.replaceChildren();
    for (const [name, text] of [["io", "I/O"], ["reads", "reads"], ["writes", "writes"], ["red", "in cache"], ["peak", "peak"]]) {
      this.values[name] = element("b", { class: name }, "0");
      const more = name === "red" ? ` of ${number.format(M)}` : "";
      root.append(element("div", {}, element("dt", {}, text), element("dd", {}, this.values[name], more)));
    }
    this.gauge = element("span", {});
    root.append(element("div", { class: "gauge", "aria-hidden": "true", title: "how full the cache is" }, this.gauge));
  }

  draw(referee) {
    for (const [name, place] of Object.entries(this.values)) {
      const text = number.format(referee[name]);
      if (place.textContent !== text) place.textContent = text;
    }
    this.gauge.style.width = `${(100 * referee.red) / Math.max(1, Math.min(this.M, referee.graph.vertices))}%`;
  }
}

/** The pseudo-code, with the line that the move comes from, and the tiles that loops are at. */
class Code {
  constructor(root, text) {
    this.root = root;
    this.shown = -1;
    root.replaceChildren();
    this.lines = text.map((each) => {
      const note = element("i"), line = element("div", {}, each, note);
      root.append(line);
      return { line, note, depth: each.search(/\S/), variable: each.match(/^\s*for (\S+) in/)?.[1] };
    });
  }

  draw(player) {
    if (!this.lines.length) return;
    const { lines, root } = this;
    if (player.line !== this.shown) {
      lines[this.shown]?.line.classList.remove("now");
      this.shown = player.line;
      const { line } = lines[this.shown];
      line.classList.add("now");
      const top = line.offsetTop - root.offsetTop;
      if (top < root.scrollTop + 20 || top > root.scrollTop + root.clientHeight - 40)
        root.scrollTop = Math.max(0, top - root.clientHeight / 2);
    }
    const around = new Set([this.shown]); // the loops that the line is in
    for (let index = this.shown, depth = lines[this.shown].depth; depth > 0; index--)
      if (lines[index].depth < depth) [depth] = [lines[index].depth, around.add(index)];
    lines.forEach(({ note, variable }, index) => {
      const tile = player.tileOf[index];
      const text = variable && tile >= 0 && around.has(index) ? `${variable} = ${tile}` : "";
      if (note.textContent !== text) note.textContent = text;
    });
  }
}

/** The tensors: what each is, and how much of it is where. */
class Tensors {
  constructor(root, board) {
    this.board = board;
    root.replaceChildren();
    const { graph } = board;
    this.rows = graph.names ? [] : graph.tensors.filter(({ rows }) => rows).map((tensor) => {
      const size = tensor.vector ? `${tensor.rows}` : `${tensor.rows} × ${tensor.width}`;
      const count = element("span", { class: "count" });
      const formula = tensor.formula ? ` = ${tensor.formula}` : "";
      const open = element("button", { click: () => this.toggle(tensor), "aria-label": `Open or close the tiles of ${tensor.name}` }, "tiles");
      open.hidden = graph.small;
      const head = element("p", {}, element("b", {}, tensor.name), formula, " ", element("small", {}, [size, tensor.role].filter(Boolean).join(", ")), " ", open);
      const item = element("li", {}, head, element("p", { class: "meaning" }, tensor.meaning), count);
      root.append(item);
      return { tensor, count, item };
    });
    this.now = null;
    $$("tensors-panel").hidden = !this.rows.length;
  }

  toggle(tensor) {
    this.board.openAll(!tensor.tiles.flat().every(({ open }) => open), tensor);
  }

  /** Show how much is where, and mark the tensor of a vertex, if there is one. */
  draw(referee, vertex = -1) {
    const now = vertex < 0 ? null : this.rows.find(({ tensor }) => tensor.index === this.board.graph.tensor[vertex]);
    if (now !== this.now) {
      this.now?.item.classList.remove("now");
      now?.item.classList.add("now");
      if (now) $$("tensors-panel").scrollTop = now.item.offsetTop - $$("tensors-panel").offsetTop - 40;
      this.now = now;
    }
    for (const { tensor, count } of this.rows) {
      let [red, part, blue] = [0, 0, 0];
      for (let cell = tensor.cell; cell < tensor.cell + tensor.rows * tensor.columns; cell++) {
        red += referee.redValues[cell];
        part += referee.redParts[cell];
        blue += referee.blueValues[cell];
      }
      const text = `● ${number.format(red)} in cache${part ? ` + ${number.format(part)} part${part > 1 ? "s" : ""} of sums` : ""}  ■ ${number.format(blue)} in memory`;
      if (count.textContent !== text) count.textContent = text;
    }
  }
}

/** The rules in five lines. */
function showRules(root, { name, lines }) {
  $$("rules-name").textContent = name;
  root.replaceChildren(...lines.map((line) => {
    const [first, ...rest] = line.split(/\s+/);
    return ["read", "write", "compute", "delete"].includes(first)
      ? element("li", {}, element("b", {}, first), ` ${rest.join(" ")}`)
      : element("li", {}, line);
  }));
}

/** A sentence of a move. */
function sentence(page, graph, referee, move) {
  if (!move) return "Before the first move: the inputs are in memory, the cache is empty.";
  const [kind, number] = move, name = graph.name(referee.vertexOf(kind, number));
  return page.sentences[kind].replace("{v}", name).replace("1 word", graph.size(number) > 1 && kind < 2 ? `${graph.size(number)} words` : "1 word");
}

/** What was said last; of what moves fast, nothing is read aloud. */
function say(text, { bad = false, aloud = true } = {}) {
  const place = $$("says");
  place.setAttribute("aria-live", aloud ? "polite" : "off");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("bad", bad);
}
