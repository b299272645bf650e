/** Where the GPUs of a cluster go on the page: cells as large as there is room for, node by node, pool by pool. */

// How large a cell can be, the largest first; the first kind whose pools together are not higher than `most` is used.
// Of the last kind one cell stands for all the GPUs of a node.
const KINDS = [
  { name: "card", width: 86, height: 58, gap: 6, between: 15, label: 18, columns: 8, stretch: 210, most: 760 },
  { name: "chip", width: 34, height: 30, gap: 3, between: 9, label: 16, columns: 8, stretch: 34, most: 620 },
  { name: "dot", width: 13, height: 13, gap: 2, between: 8, label: 0, columns: 4, stretch: 13, most: 620 },
  { name: "tiny", width: 6, height: 6, gap: 1, between: 6, label: 0, columns: 4, stretch: 6, most: 1300 },
  { name: "node", width: 6, height: 6, gap: 1, between: 1, label: 0, columns: 1, stretch: 6, most: Infinity },
];
const HEADING = 40; // the height of a pool's heading

/** The kind of cell for these pools in this width; and for each pool {height, cells, labels}. */
export function placed(pools, width) {
  for (const kind of KINDS) {
    const shapes = pools.map((pool) => shaped(pool, kind, width));
    const wide = Math.min(...shapes.map((each) => each.room)); // the same in all pools
    const places = pools.map((pool, number) => placedPool(pool, kind, shapes[number], wide));
    const height = places.reduce((sum, each) => sum + each.height + HEADING, 0);
    if (height <= kind.most) return { kind, places };
  }
  throw new Error("the last kind always fits");
}

/** How many columns a node has, how many nodes are side by side, and how wide a cell can then be. */
function shaped(pool, { name, width: least, gap, between, columns: most, stretch }, width) {
  const largest = name === "node" ? 1 : Math.max(...pool.nodes.map((node) => node.gpus.length));
  const columns = Math.min(largest, most, Math.max(1, Math.floor((width + gap) / (least + gap))));
  const block = columns * (least + gap) - gap;
  const abreast = Math.max(1, Math.floor((width + between) / (block + between)));
  const beside = Math.min(abreast, pool.nodes.length);
  const room = Math.floor(((width + between) / beside - between + gap) / columns - gap);
  return { columns, abreast, room: Math.max(least, Math.min(stretch, room)) };
}

/** The cells of a pool, {gpus, node, x, y, width, height}, and the names of its nodes, {node, x, y, width}. */
function placedPool(pool, kind, { columns, abreast }, wide) {
  const { gap, between, label } = kind;
  const block = columns * (wide + gap) - gap;
  const cells = [];
  const labels = [];
  let [x, y, height] = [0, 0, 0];
  pool.nodes.forEach((node, number) => {
    if (number && number % abreast === 0) [x, y, height] = [0, y + height + between, 0];
    const groups = kind.name === "node" ? [node.gpus] : node.gpus.map((gpu) => [gpu]);
    groups.forEach((gpus, at) => cells.push({
      gpus,
      node,
      x: x + (at % columns) * (wide + gap),
      y: y + label + Math.floor(at / columns) * (kind.height + gap),
      width: wide,
      height: kind.height,
    }));
    if (label) labels.push({ node, x, y: y + label / 2 - 1, width: block });
    height = Math.max(height, label + Math.ceil(groups.length / columns) * (kind.height + gap) - gap);
    x += block + between;
  });
  return { cells, labels, height: y + height + 2 };
}
