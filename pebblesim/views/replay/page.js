"use strict";
/* The page: its modes, its keys, and the loop that draws. */

// The second board, for two games side by side, looks like the first.
const second = $$("board-0").cloneNode(true);
second.id = "board-1";
second.hidden = true;
$$("boards").append(second);

const page = {
  data: JSON.parse($$("page").textContent),
  modes: {}, mode: null, wanted: true,
  keys: {
    tour: "Keys: ← and → go through the tour.",
    transport: "Keys: ← → back and on, with Shift by a line; Space plays and pauses; Home, End; [ ] slower, faster.",
    moves: "Keys: arrows choose a vertex; R, C, W, D read, compute, write, delete it; Enter does what is likely; U takes back.",
  },

  root: (index) => $$(`board-${index}`),
  counters: (index) => page.root(index).querySelector(".counters"),
  changed() { page.wanted = true; },

  /** Show what a mode needs. */
  lay({ boards, bar, code }) {
    document.body.dataset.boards = boards;
    document.body.dataset.bar = bar;
    $$("code-panel").hidden = !code;
    $$("card").hidden = bar !== "tour";
    $$("goal").hidden = bar !== "moves";
    $$("keys").textContent = page.keys[bar];
    page.root(1).hidden = boards < 2;
  },

  head(index, title, verdict, bad = false) {
    page.root(index).querySelector("h2").textContent = title;
    const place = page.root(index).querySelector(".verdict");
    place.textContent = verdict;
    place.classList.toggle("bad", bad);
  },

  enter(name) {
    page.clock.set(false);
    page.mode?.leave?.();
    for (const tab of document.querySelectorAll("#modes button")) {
      tab.setAttribute("aria-selected", String(tab.dataset.mode === name));
      tab.tabIndex = tab.dataset.mode === name ? 0 : -1;
    }
    document.body.dataset.mode = name;
    page.mode = page.modes[name];
    page.mode.enter();
    page.fit();
  },

  fit() {
    readInk();
    const shown = document.body.dataset.boards === "2" ? page.boards : page.boards.slice(0, 1);
    for (const board of shown) board.fit();
    page.mode.fit();
    page.changed();
  },

  /** The page's address may name a mode and a place: #watch-1234, #race, #play-1; a number alone is a move of the game. */
  goToHash() {
    const found = location.hash.match(/^#(?:([a-z]+)(?:-|$))?(\d+)?$/);
    if (!found || (!found[1] && !found[2])) return false;
    const name = found[1] ?? "watch";
    if (!page.modes[name]) return false;
    page.enter(name);
    if (found[2]) page.mode.goTo(Number(found[2]));
    return true;
  },

  key(event) {
    const own = event.target.tagName; // what the focused control does with the key by itself stays its business
    if (event.ctrlKey || event.metaKey || event.altKey || own === "SELECT") return;
    if (own === "BUTTON" && (event.key === " " || event.key === "Enter")) return;
    if (event.target.getAttribute("role") === "tab" && event.key.startsWith("Arrow")) return;
    if (page.mode.key(event)) event.preventDefault();
  },

  loop(time) {
    page.mode.tick(time);
    if (page.wanted) {
      page.wanted = false;
      page.mode.draw();
    }
    requestAnimationFrame(page.loop);
  },

  start() {
    const { games, tour, boards } = page.data;
    readInk();
    page.boards = [0, 1].map((index) => new Board(page.root(index), page.changed));
    page.clock = new Clock();
    const watch = new Watch(games[0]);
    page.modes = { learn: new Learn(tour), watch };
    if (games.length > 1) page.modes.race = new Race(games, watch);
    page.modes.play = new Play([...boards, ...games], [...boards.map(() => null), watch.player.graph, page.modes.race?.runners[1].player.graph]);
    const tabs = [...document.querySelectorAll("#modes button")];
    for (const tab of tabs) {
      tab.hidden = !page.modes[tab.dataset.mode];
      tab.addEventListener("click", () => page.enter(tab.dataset.mode));
      tab.addEventListener("keydown", (event) => {
        const shown = tabs.filter((each) => !each.hidden), by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const next = shown[(shown.indexOf(tab) + by + shown.length) % shown.length];
        page.enter(next.dataset.mode);
        next.focus();
      });
    }
    if (!page.goToHash()) page.enter(page.modes.race ? "race" : "learn"); // who asked for two games wants to see both
    document.addEventListener("keydown", page.key);
    window.addEventListener("hashchange", page.goToHash);
    new ResizeObserver(page.fit).observe($$("boards"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", page.fit);
    requestAnimationFrame(page.loop);
  },
};

page.start();
