"use strict";
/* Replay a game, move by move, beside its pseudo-code. */

class Watch {
  constructor(game) {
    this.unit = "moves";
    this.game = game;
    this.player = new Player(game, new Graph(game.graph));
  }

  get length() { return this.player.length; }
  get at() { return this.player.at; }

  enter() {
    const { game, player } = this, board = page.boards[0];
    page.lay({ boards: 1, bar: "transport", code: game.text.length > 0 });
    page.head(0, game.title, game.verdict, !game.complete);
    board.show(player.graph, player.referee);
    this.counters = new Counters(page.counters(0), game.M);
    this.code = new Code($$("code"), game.text);
    this.tensors = new Tensors($$("tensors"), board);
    showRules($$("rules"), game.rules);
    page.clock.serve(this, player.length > 20000 ? 6 : player.length > 200 ? 3 : 1);
  }

  go(at) {
    this.player.seek(at);
    page.changed();
  }

  step(direction) {
    this.player.seekStep(direction);
    page.changed();
  }

  paint(context, width, height) { paintCache(this.player, context, width, height); }

  draw() {
    const { player, game } = this, board = page.boards[0];
    board.vertex = player.vertex;
    board.draw();
    this.counters.draw(player.referee);
    this.code.draw(player);
    this.tensors.draw(player.referee, player.vertex);
    page.clock.draw();
    const ended = player.at === player.length && game.violation;
    const text = ended ? `Illegal: ${game.violation}` : sentence(page.data, player.graph, player.referee, player.last);
    say(text, { bad: Boolean(ended), aloud: !page.clock.playing });
  }

  key(event) { return page.clock.key(event); }
  tick(time) { page.clock.tick(time); }
  fit() { page.clock.fit(); }
  goTo(place) { this.go(place); }
}
