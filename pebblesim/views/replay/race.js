"use strict";
/* Two games side by side. Their common clock is the words that have moved, since all else is free: who moves fewer words
   is done first. */

class Race {
  constructor(games, watches) {
    this.unit = "words";
    this.at = 0;
    this.runners = games.map((game, index) => {
      const player = index ? new Player(game, new Graph(game.graph)) : watches.player;
      return { game, player, lane: page.root(index).querySelector(".lane") };
    });
    this.length = Math.max(...this.runners.map(({ player }) => player.io));
  }

  enter() {
    page.lay({ boards: 2, bar: "transport", code: false });
    this.runners.forEach((runner, index) => {
      const { game, player } = runner;
      page.head(index, game.title, game.verdict, !game.complete);
      page.boards[index].show(player.graph, player.referee);
      runner.counters = new Counters(page.counters(index), game.M);
    });
    this.tensors = new Tensors($$("tensors"), page.boards[0]);
    showRules($$("rules"), this.runners[0].game.rules);
    page.clock.serve(this, this.length > 2000 ? 5 : this.length > 100 ? 3 : 1);
    this.go(this.at);
  }

  go(at) {
    this.at = Math.min(this.length, Math.max(0, Math.round(at)));
    for (const { player } of this.runners) player.seekTransfer(this.at);
    page.changed();
  }

  step(direction) { this.go(this.at + direction * Math.max(2, Math.round(this.length / 20))); }

  paint(context, width, height) {
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.textBaseline = "middle";
    this.runners.forEach(({ game, player }, index) => {
      const y = 4 + (index * (height - 4)) / 2, tall = height / 2 - 6, end = (player.io / Math.max(1, this.length)) * width;
      context.fillStyle = index ? ink.blue : ink.red;
      context.globalAlpha = 0.3;
      context.fillRect(0, y, end, tall);
      context.globalAlpha = 1;
      context.fillStyle = ink.ink;
      context.fillText(`${game.name}: ${number.format(player.io)} words`, 6, y + tall / 2 + 1);
    });
  }

  draw() {
    this.runners.forEach(({ player, counters, lane }, index) => {
      page.boards[index].vertex = player.vertex;
      page.boards[index].draw();
      counters.draw(player.referee);
      lane.firstElementChild.style.width = `${(100 * player.referee.io) / Math.max(1, this.length)}%`;
      lane.lastElementChild.textContent = player.at === player.length ? `done, ${number.format(player.io)} words` : `${number.format(player.referee.io)} words`;
    });
    this.tensors.draw(this.runners[0].player.referee, this.runners[0].player.vertex);
    page.clock.draw();
    say(this.told(), { aloud: !page.clock.playing });
  }

  told() {
    const [a, b] = this.runners.map(({ game, player }) => ({ name: game.name, io: player.io, done: player.at === player.length }));
    const [less, more] = a.io <= b.io ? [a, b] : [b, a];
    if (less.io === more.io) return `Both move ${number.format(less.io)} words in all. The clock counts words; all else is free.`;
    const saved = `${number.format(more.io - less.io)} words fewer than ${more.name}`;
    if (more.done) return `${less.name} needs ${number.format(less.io)} words, ${saved}.`;
    if (less.done) return `${less.name} is done with ${number.format(less.io)} words; ${more.name} goes on.`;
    return `Each game has moved ${number.format(this.at)} words. The clock counts words; all else is free.`;
  }

  key(event) { return page.clock.key(event); }
  tick(time) { page.clock.tick(time); }
  fit() { page.clock.fit(); }
  goTo(place) { this.go(place); }
}
