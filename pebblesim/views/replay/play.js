"use strict";
/* Play oneself: choose a vertex, make a move, and the rules judge it. */

class Play {
  constructor(choices, graphs) {
    this.choices = choices; // games, with what is known of the least I/O
    this.sessions = choices.map((game, index) => ({ game, graph: graphs[index], referee: null, past: [] }));
    this.number = 0;
    $$("board-choice").replaceChildren(...choices.map((game, index) => new Option(game.title, index)));
    $$("board-choice").addEventListener("change", () => this.choose(Number($$("board-choice").value)));
    for (const kind of [READ, COMPUTE, WRITE, DELETE]) $$(`do-${page.data.kinds[kind]}`).addEventListener("click", () => this.move(kind));
    $$("undo").addEventListener("click", () => this.undo());
    $$("restart").addEventListener("click", () => this.restart());
  }

  get session() { return this.sessions[this.number]; }

  enter() {
    page.lay({ boards: 1, bar: "moves", code: false });
    this.choose(this.number);
  }

  choose(index) {
    this.number = index;
    $$("board-choice").value = index;
    const { session } = this, { game } = session, board = page.boards[0];
    session.graph ??= new Graph(game.graph);
    session.referee ??= new Referee(session.graph, game.M, game.rules);
    page.head(0, game.title, "");
    board.show(session.graph, session.referee);
    board.onPick = (v) => this.pick(v);
    board.ready = (v) => !this.why(COMPUTE, v);
    this.counters = new Counters(page.counters(0), game.M);
    this.tensors = new Tensors($$("tensors"), board);
    showRules($$("rules"), game.rules);
    this.told = session.past.length ? "" : "Choose a vertex, then a move. Dashed rings can be computed now. All outputs, the double rings, must end in memory.";
    page.changed();
  }

  leave() {
    Object.assign(page.boards[0], { onPick: null, ready: null, cursor: null });
  }

  /** The number of a move on a vertex: itself, or its next term where these come one by one. */
  numbered(kind, v) {
    const { graph, referee } = this.session;
    if (!referee.byTerm || kind !== COMPUTE) return v;
    const [from, to] = [graph.indptr[v], graph.indptr[v + 1]];
    if (from === to) return graph.preds.length + v;
    const missing = Array.from({ length: to - from }, (_, i) => from + i).filter((e) => !referee.added[e]);
    return missing.find((e) => !referee.broken(COMPUTE, e)) ?? missing[0] ?? from;
  }

  why(kind, v) { return this.session.referee.broken(kind, this.numbered(kind, v)); }

  /** The move that one most likely means. */
  likely(v) {
    const { graph, referee } = this.session, state = referee.state[v];
    if (!(state & FLAG.red)) return graph.isInput[v] || state & FLAG.blue ? READ : COMPUTE;
    if (referee.byTerm && !this.why(COMPUTE, v)) return COMPUTE;
    return graph.isOutput[v] && !(state & FLAG.blue) ? WRITE : DELETE;
  }

  pick(v) {
    const board = page.boards[0];
    if (v >= 0 && board.cursor?.vertex === v) return this.move(this.likely(v));
    board.cursor = v >= 0 ? { vertex: v } : null;
    this.told = "";
    page.changed();
  }

  move(kind) {
    const { session } = this, { referee } = session, v = page.boards[0].cursor?.vertex ?? -1;
    if (v < 0) return this.tell("Choose a vertex first.");
    const number = this.numbered(kind, v), why = referee.broken(kind, number);
    if (why) return this.tell(`Not allowed: ${why}`, true);
    const pebbles = () => referee.state[v] & (FLAG.red | FLAG.blue), before = pebbles();
    session.past.push([kind, number, referee.save()]);
    referee.play(kind, number);
    const vain = kind === WRITE && pebbles() === before ? " The same value was in memory already: this write changes nothing." : "";
    return this.tell(`${sentence(page.data, session.graph, referee, [kind, number])}${vain} ${this.verdict()}`);
  }

  verdict() {
    const { referee, game } = this.session;
    if (referee.missing.length) return "";
    const par = game.par?.best ?? game.par?.bound;
    if (par === undefined || par === null) return `Done, with ${referee.io} words of I/O.`;
    if (referee.io > par) return `Done, with ${referee.io} words of I/O; it can be done with ${par}. Undo, or start again.`;
    return referee.io === game.par.bound ? `Done, with ${referee.io} words of I/O. That is the least!` : `Done, with ${referee.io} words: as good as the best game known, or better.`;
  }

  /** The chosen place, and what may be done with it. */
  possible(board) {
    const v = board.cursor?.vertex ?? -1, kinds = v < 0 ? [] : [READ, COMPUTE, WRITE, DELETE].filter((kind) => !this.why(kind, v));
    const names = kinds.map((kind) => page.data.kinds[kind]).join(", ");
    return board.told(board.cursor) + (v < 0 ? "" : names ? ` You may ${names}.` : ` No move is allowed: ${this.why(this.likely(v), v)}`);
  }

  undo() {
    const { session } = this, last = session.past.pop();
    if (!last) return this.tell("There is no move to take back.");
    session.referee.restore(last[2]);
    return this.tell(`Taken back: ${page.data.kinds[last[0]]} ${session.graph.name(session.referee.vertexOf(last[0], last[1]))}.`);
  }

  restart() {
    this.session.referee.restart();
    this.session.past = [];
    this.tell("The inputs are in memory, the cache is empty.");
  }

  tell(text, bad = false) {
    [this.told, this.bad] = [text, bad];
    page.changed();
  }

  draw() {
    const board = page.boards[0], { session } = this, { referee, game } = session, v = board.cursor?.vertex ?? -1;
    board.vertex = -1;
    board.draw();
    this.counters.draw(referee);
    this.tensors.draw(referee, v);
    for (const kind of [READ, COMPUTE, WRITE, DELETE]) {
      const button = $$(`do-${page.data.kinds[kind]}`), allowed = v >= 0 && !this.why(kind, v);
      button.setAttribute("aria-disabled", String(!allowed));
      button.classList.toggle("likely", allowed && kind === this.likely(v));
    }
    $$("undo").disabled = !session.past.length;
    const { par } = game, known = par?.best === par?.bound ? "the least I/O is" : "lower bound";
    $$("par").textContent = par ? `${known} ${number.format(par.bound)}${par.best !== null && par.best !== par.bound ? `, best game known ${number.format(par.best)}` : ""}` : "";
    $$("par").title = par?.source ?? "";
    $$("moves-made").textContent = number.format(referee.moves);
    say(this.told || this.possible(board) || "Choose a vertex, then a move.", { bad: Boolean(this.told && this.bad) });
    this.bad = this.told ? this.bad : false;
  }

  key(event) {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const moves = { r: READ, c: COMPUTE, w: WRITE, d: DELETE };
    const board = page.boards[0], key = event.key.toLowerCase();
    if (arrows[event.key]) {
      this.told = "";
      board.step(...arrows[event.key]);
    } else if (key in moves) this.move(moves[key]);
    else if (key === "u" || event.key === "Backspace") this.undo();
    else if (event.key === "Enter" || event.key === " ") {
      if (board.cursor?.tile) board.toggle(board.cursor.tile);
      else if (board.cursor) this.move(this.likely(board.cursor.vertex));
    } else if (event.key === "Escape" && board.cursor?.vertex >= 0 && !this.session.graph.small) board.toggle(this.session.graph.tile(board.cursor.vertex));
    else return false;
    return true;
  }

  tick() {}
  fit() {}
  goTo(place) { if (place < this.sessions.length) this.choose(place); }
}
