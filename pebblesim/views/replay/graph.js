"use strict";
/* A graph, and where its vertices stand. A tensor is a matrix of cells, cut into tiles; a closed tile shows a sign for
   each cell, an open one all vertices of its cells. No drawing here. */

const MOST_OPEN = 300; // vertices of a graph that is shown open at the start
const TILES = 4; // tiles along a side of a tensor, at most

class Graph {
  /** @param given what `pebblesim.views.replay.content.of_graph` gives. */
  constructor(given) {
    const array = (name, Type) => decoded(given.arrays[name], Type);
    Object.assign(this, { tensors: given.tensors, tails: given.tails, names: given.names });
    for (const name of ["indptr", "preds", "inputs", "outputs", "cell", "tail"]) this[name] = array(name, Uint32Array);
    this.tensor = array("tensor", Uint16Array);
    this.value = array("value", Uint8Array);
    this.inside = array("place", Float32Array); // x and y of each vertex in its cell
    this.words = given.arrays.words ? array("words", Uint32Array) : null;
    this.vertices = this.cell.length;
    this.targets = new Uint32Array(this.preds.length);
    for (let v = 0; v < this.vertices; v++) this.targets.fill(v, this.indptr[v], this.indptr[v + 1]);
    this.cells = this.tensors.reduce((sum, { rows, columns }) => sum + rows * columns, 0);
    this.isOutput = new Uint8Array(this.vertices);
    for (const v of this.outputs) this.isOutput[v] = 1;
    this.isInput = new Uint8Array(this.vertices);
    for (const v of this.inputs) this.isInput[v] = 1;
    this.x = new Float32Array(this.vertices); // of what is shown of a vertex: itself, or its cell
    this.y = new Float32Array(this.vertices);
    this.cellX = new Float32Array(this.cells);
    this.cellY = new Float32Array(this.cells);
    this.used = new Uint8Array(this.cells); // whether a cell has a vertex
    for (const cell of this.cell) this.used[cell] = 1;
    this.tiles = [];
    this.tileOf = new Uint32Array(this.cells);
    this.tensors.forEach((tensor, index) => this.cut(tensor, index));
    this.small = this.vertices <= MOST_OPEN;
    this.openAll(this.small);
  }

  /** Words of a vertex. */
  size(v) { return this.words ? this.words[v] : 1; }

  cut(tensor, index) {
    const plain = this.names !== null; // without tensors: a column is a layer
    tensor.index = index;
    tensor.tall1 = Math.max(1, Math.ceil(tensor.rows / TILES));
    tensor.wide1 = Math.max(1, Math.ceil(tensor.columns / (plain ? 2 * TILES : TILES)));
    [tensor.gapX, tensor.gapY] = plain ? [1.6, 0.6] : tensor.deep > 1 ? [0.9, 0.5] : [0.35, 0.35];
    tensor.spread = plain ? Math.max(1, tensor.rows / tensor.columns) : 1; // how far apart the columns of closed tiles are
    tensor.tiles = [];
    for (let top = 0; top < tensor.rows; top += tensor.tall1) {
      const line = [];
      for (let left = 0; left < tensor.columns; left += tensor.wide1) {
        const rows = Math.min(tensor.tall1, tensor.rows - top), columns = Math.min(tensor.wide1, tensor.columns - left);
        const tile = { tensor, number: this.tiles.length, top, left, rows, columns, open: false };
        for (let i = top; i < top + rows; i++)
          for (let j = left; j < left + columns; j++) this.tileOf[tensor.cell + i * tensor.columns + j] = tile.number;
        this.tiles.push(tile);
        line.push(tile);
      }
      tensor.tiles.push(line);
    }
  }

  openAll(open, tensor = null) {
    for (const tile of this.tiles) if (!tensor || tile.tensor === tensor) tile.open = open;
  }

  tile(v) { return this.tiles[this.tileOf[this.cell[v]]]; }

  /** Whether a vertex is shown itself, not only its cell. */
  shown(v) { return this.tile(v).open; }

  /** What a vertex is called. */
  name(v) {
    if (this.names) return this.names[v];
    const tensor = this.tensors[this.tensor[v]], [block, part] = this.tails[this.tail[v]];
    return `${tensor.name}[${block}${this.index(tensor, this.cell[v])}]${part}`;
  }

  /** The index of a cell in its tensor. */
  index(tensor, cell) {
    const at = cell - tensor.cell, row = Math.floor(at / tensor.columns);
    return tensor.vector ? `${row}` : `${row},${(at % tensor.columns) % tensor.width}`;
  }

  /** A sign for a part of a sum, the name of a value. */
  label(v) {
    if (this.names) return this.names[v].replace(/^vertex /, "");
    const part = this.tails[this.tail[v]][1];
    return part.includes("product") ? "×" : part.includes("sum") ? "+" : part.includes("term") ? "1·" : part ? "0" : this.name(v);
  }

  /** What a tile is called. */
  tileName({ tensor, top, left, rows, columns }) {
    const span = (from, count) => (count > 1 ? `${from}–${from + count - 1}` : `${from}`);
    if (this.names) return `layers ${span(left, columns)}, rows ${span(top, rows)}`;
    return `${tensor.name}[${span(top, rows)}${tensor.vector ? "" : `, ${span(left, columns)}`}]`;
  }

  // -- places -----------------------------------------------------------------------------------------------------------

  /** Place everything for a frame of that width and height: layers from left to right, in as many lines as suit it. */
  arrange(width, height) {
    for (const tensor of this.tensors) this.measure(tensor);
    const last = Math.max(0, ...this.tensors.map(({ level }) => level));
    const layers = Array.from({ length: last + 1 }, (_, level) => this.tensors.filter((each) => each.level === level && each.rows));
    let best = null;
    for (let lines = 1; lines <= 6; lines++) {
      const tried = this.flow(layers.filter((each) => each.length), lines);
      tried.unit = Math.min(width / tried.width, height / tried.height);
      if (!best || tried.unit > 1.05 * best.unit) best = tried;
    }
    for (const { tensor, x, y } of best.places) this.put(tensor, x, y);
    [this.width, this.height] = [best.width, best.height];
    this.settle();
  }

  /** Widths of a tensor's columns of tiles, heights of their rows, and the whole. */
  measure(tensor) {
    const size = (tile) => tile.open
      ? [tile.columns * (tensor.deep + tensor.gapX), tile.rows * (tensor.tall + tensor.gapY)]
      : [tile.columns * tensor.spread, tile.rows];
    tensor.widths = tensor.tiles[0]?.map((_, j) => Math.max(...tensor.tiles.map((line) => size(line[j])[0]))) ?? [];
    tensor.heights = tensor.tiles.map((line) => Math.max(...line.map((tile) => size(tile)[1])));
    const total = (sizes) => sizes.reduce((sum, each) => sum + each + Graph.BETWEEN, Graph.BETWEEN);
    tensor.across = Math.max(total(tensor.widths), 0.75 * tensor.name.length + 1);
    tensor.down = total(tensor.heights) + (this.names ? 0 : Graph.NAME);
  }

  flow(layers, lines) {
    const wide = layers.map((layer) => Math.max(...layer.map(({ across }) => across)));
    const total = wide.reduce((sum, each) => sum + each + Graph.LAYERS, 0), places = [];
    let [x, y, tall, widest] = [0, 0, 0, 0], line = [];
    const end = () => {
      for (const { layer, x: left, across } of line) {
        let top = y + (tall - Graph.stacked(layer)) / 2;
        for (const tensor of layer) {
          places.push({ tensor, x: left + (across - tensor.across) / 2, y: top });
          top += tensor.down + Graph.TENSORS;
        }
      }
      widest = Math.max(widest, x - Graph.LAYERS);
      [x, y, tall, line] = [0, y + tall + Graph.LAYERS, 0, []];
    };
    layers.forEach((layer, index) => {
      if (line.length && x + wide[index] / 2 > total / lines) end();
      line.push({ layer, x, across: wide[index] });
      x += wide[index] + Graph.LAYERS;
      tall = Math.max(tall, Graph.stacked(layer));
    });
    end();
    return { places, width: widest, height: y - Graph.LAYERS };
  }

  static stacked(layer) {
    return layer.reduce((sum, { down }) => sum + down + Graph.TENSORS, -Graph.TENSORS);
  }

  /** Place a tensor's tiles and cells; the vertices follow. */
  put(tensor, x, y) {
    [tensor.x, tensor.y] = [x, y];
    let top = y + Graph.BETWEEN + (this.names ? 0 : Graph.NAME);
    tensor.tiles.forEach((line, i) => {
      let left = x + Graph.BETWEEN;
      line.forEach((tile, j) => {
        Object.assign(tile, { x: left, y: top, width: tensor.widths[j], height: tensor.heights[i] });
        const [stepX, stepY] = [tile.width / tile.columns, tile.height / tile.rows];
        const [roomX, roomY] = tile.open ? [tensor.deep, tensor.tall] : [1, 1];
        for (let r = 0; r < tile.rows; r++)
          for (let c = 0; c < tile.columns; c++) {
            const cell = tensor.cell + (tile.top + r) * tensor.columns + tile.left + c;
            this.cellX[cell] = left + (c + 0.5) * stepX - (roomX - 1) / 2;
            this.cellY[cell] = top + (r + 0.5) * stepY - (roomY - 1) / 2;
          }
        left += tensor.widths[j] + Graph.BETWEEN;
      });
      top += tensor.heights[i] + Graph.BETWEEN;
    });
  }

  /** Where the vertices are once the tensors are. */
  settle() {
    for (let v = 0; v < this.vertices; v++) {
      const cell = this.cell[v], open = this.tiles[this.tileOf[cell]].open;
      this.x[v] = this.cellX[cell] + (open ? this.inside[2 * v] : 0);
      this.y[v] = this.cellY[cell] + (open ? this.inside[2 * v + 1] : 0);
    }
  }
}

Object.assign(Graph, { NAME: 1.5, BETWEEN: 0.3, TENSORS: 1, LAYERS: 2.6 }); // room for a name, and between things
