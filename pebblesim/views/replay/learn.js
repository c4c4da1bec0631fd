"use strict";
/* A tour of the smallest game, told card by card. */

class Learn {
  constructor(tour) {
    this.tour = tour;
    this.player = new Player(tour, new Graph(tour.graph));
    this.at = 0;
    $$("tour-back").addEventListener("click", () => this.go(this.at - 1));
    $$("tour-next").addEventListener("click", () => this.go(this.at + 1));
    $$("tour-play").addEventListener("click", () => page.enter("play"));
  }

  enter() {
    page.lay({ boards: 1, bar: "tour", code: false });
    page.head(0, this.tour.title, "");
    page.boards[0].show(this.player.graph, this.player.referee);
    this.counters = new Counters(page.counters(0), this.tour.M);
    this.tensors = new Tensors($$("tensors"), page.boards[0]);
    showRules($$("rules"), this.tour.rules);
  }

  go(at) {
    this.at = Math.min(this.tour.cards.length - 1, Math.max(0, at));
    page.changed();
  }

  draw() {
    const [move, heading, text] = this.tour.cards[this.at], { player } = this;
    player.seek(move);
    page.boards[0].vertex = heading ? -1 : player.vertex;
    page.boards[0].draw();
    this.counters.draw(player.referee);
    this.tensors.draw(player.referee, page.boards[0].vertex);
    const moved = sentence(page.data, player.graph, player.referee, player.last);
    $$("card").textContent = heading || `Move ${move}: ${page.data.kinds[player.last[0]]}`;
    say(heading ? text : `${moved} ${text}`);
    $$("tour-at").textContent = `${this.at + 1} of ${this.tour.cards.length}`;
    $$("tour-back").disabled = this.at === 0;
    const ended = this.at === this.tour.cards.length - 1;
    $$("tour-next").hidden = ended;
    $$("tour-play").hidden = !ended;
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1, " ": 1, Home: -Infinity, End: Infinity }[event.key];
    if (by) this.go(this.at + by);
    return Boolean(by);
  }

  tick() {}
  fit() {}
  goTo(place) { this.go(place); }
}
