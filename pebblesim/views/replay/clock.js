"use strict";
/* The bar that plays, steps and scrubs, and the line of time above it. */

const SPEEDS = [1, 2, 4, 16, 60, 250, 1000, 4000, 16000, 64000];

class Clock {
  constructor() {
    this.mode = null; // {length, at, unit, go(t), step(direction), paint(context, width, height)}
    this.playing = false;
    [this.owed, this.before] = [0, 0];
    this.canvas = $$("timeline");
    this.still = document.createElement("canvas");
    const clicks = {
      first: () => this.go(0), "back-line": () => this.leap(-1), back: () => this.go(this.mode.at - 1), play: () => this.set(!this.playing),
      step: () => this.go(this.mode.at + 1), "step-line": () => this.leap(1), last: () => this.go(this.mode.length),
    };
    for (const [id, action] of Object.entries(clicks)) $$(id).addEventListener("click", action);
    $$("scrub").addEventListener("input", () => this.go(Number($$("scrub").value)));
    const scrub = (event) => this.go((event.offsetX / this.width) * this.mode.length);
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      scrub(event);
    });
    this.canvas.addEventListener("pointermove", (event) => { if (event.buttons) scrub(event); });
  }

  /** Serve a mode; the speeds are in its unit. */
  serve(mode, speed) {
    this.mode = mode;
    this.set(false);
    $$("speed").replaceChildren(...SPEEDS.map((each) => new Option(`${number.format(each)} ${mode.unit}/s`, each)));
    $$("speed").selectedIndex = speed;
    $$("scrub").max = mode.length;
    $$("length").textContent = number.format(mode.length);
    $$("unit").textContent = mode.unit.replace(/s$/, "");
    this.fit();
  }

  /** Go somewhere, by hand: the game pauses. */
  go(at) {
    this.set(false);
    this.mode.go(at);
  }

  leap(direction) {
    this.set(false);
    this.mode.step(direction);
  }

  set(on) {
    if (on && this.mode.at >= this.mode.length) this.mode.go(0);
    this.playing = on;
    [this.owed, this.before] = [0, performance.now()];
    $$("play").textContent = on ? "❚❚ pause" : "▸ play";
    $$("play").setAttribute("aria-label", on ? "Pause" : "Play");
    page.changed();
  }

  tick(time) {
    if (!this.playing) return;
    this.owed += (Math.max(0, time - this.before) / 1000) * Number($$("speed").value);
    this.before = time;
    const moves = Math.floor(this.owed);
    this.owed -= moves;
    if (moves) this.mode.go(this.mode.at + moves);
    if (this.mode.at >= this.mode.length) this.set(false);
  }

  fit() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width || !this.mode) return;
    Object.assign(this, { width: box.width, height: box.height, context: sharp(this.canvas, box.width, box.height) });
    this.mode.paint(sharp(this.still, box.width, box.height), box.width, box.height);
  }

  draw() {
    const { at, length } = this.mode;
    $$("at").textContent = number.format(at);
    $$("scrub").value = at;
    $$("scrub").setAttribute("aria-valuetext", `${this.mode.unit.replace(/s$/, "")} ${at} of ${length}`);
    if (!this.context) return;
    this.context.clearRect(0, 0, this.width, this.height);
    this.context.drawImage(this.still, 0, 0, this.width, this.height);
    this.context.fillStyle = ink.red;
    this.context.fillRect(Math.min(this.width - 2, Math.max(0, (at / Math.max(1, length)) * this.width - 1)), 0, 2, this.height);
  }

  key(event) {
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (along) event.shiftKey ? this.leap(along) : this.go(this.mode.at + along);
    else if (event.key === " ") this.set(!this.playing);
    else if (event.key === "Home") this.go(0);
    else if (event.key === "End") this.go(this.mode.length);
    else if (event.key === "[" || event.key === "]") {
      const speed = $$("speed"), by = event.key === "]" ? 1 : -1;
      speed.selectedIndex = Math.min(SPEEDS.length - 1, Math.max(0, speed.selectedIndex + by));
    } else return false;
    return true;
  }
}

/** Words in cache over the moves of a game, with M and the phases. */
function paintCache(player, context, width, height) {
  const { M } = player.game, tall = height - 16, most = Math.max(Math.min(M, 4 * player.highest), player.highest, 1);
  const high = (red) => height - (red / most) * tall;
  context.fillStyle = ink.blue;
  context.globalAlpha = 0.5;
  for (let x = 0; x < width; x++) {
    const from = Math.floor((x / width) * (player.length + 1));
    const to = Math.max(from + 1, Math.floor(((x + 1) / width) * (player.length + 1)));
    let red = 0;
    for (let t = from; t < to && t <= player.length; t++) red = Math.max(red, player.history[t]);
    context.fillRect(x, high(red), 1, height - high(red));
  }
  context.globalAlpha = 1;
  context.fillStyle = ink.dim;
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = "top";
  let end = -9;
  player.game.phases.forEach(([name, start], index) => {
    const x = (start / Math.max(1, player.length)) * width;
    if (index) context.fillRect(Math.round(x), 0, 1, height);
    if (x < end) return; // there is no room for its name
    context.fillText(name, x + 4, 1);
    end = x + 8 + context.measureText(name).width;
  });
  if (M > most) return;
  context.strokeStyle = ink.ink;
  context.setLineDash([6, 3]);
  context.beginPath();
  context.moveTo(0, high(M) + 0.5);
  context.lineTo(width, high(M) + 0.5);
  context.stroke();
  context.textAlign = "right";
  context.fillText(`M = ${number.format(M)}`, width - 3, 1);
}
