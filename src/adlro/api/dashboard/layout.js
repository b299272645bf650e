/** Where the GPUs of a cluster go on the page: cells as large as there is room for, node by node, pool by pool. */

// How large a cell can be, the largest first; the first kind whose pools together are not higher than `most` is used.
// Of the last kind one cell stands for all the GPUs of a node. Kinds without room for a name over each node have a
// ruler at the left: the name of the first node of each row.
const KINDS = [
  { name: "card", width: 86, height: 58, gap: 6, between: 15, label: 18, columns: 8, stretch: 210, most: 760 },
  { name: "chip", width: 34, height: 30, gap: 3, between: 9, label: 16, columns: 8, stretch: 52, most: 620 },
  { name: "dot", width: 13, height: 13, gap: 2, between: 8, label: 0, columns: 4, stretch: 13, most: 620 },
  { name: "tiny", width: 6, height: 6, gap: 1, between: 6, label: 0, columns: 4, stretch: 6, most: 1300 },
  { name: "node", width: 9, height: 9, gap: 2, between: 2, label: 0, columns: 1, stretch: 9, most: Infinity },
];
const HEADING = 40; // the height of a pool's heading
const RULER = 96; // the width of the names at the left
const LEAST_LABEL = 13; // pixels between two names

/** The kind of cell for these pools in this width; and for each pool {height, cells, labels}. */
export function placed(pools, width) {
  for (const kind of KINDS) {
    const ruler = kind.label ? 0 : Math.min(RULER, Math.floor(width * 0.2));
    const shapes = pools.map((pool) => shaped(pool, kind, width - ruler));
    const wide = Math.min(...shapes.map((each) => each.room)); // the same in all pools
    const places = pools.map((pool, number) => placedPool(pool, kind, shapes[number], wide, ruler, width - ruler));
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
  const fits = Math.max(1, Math.floor((width + between) / (block + between)));
  const abreast = fits >= 10 ? fits - (fits % 10) : fits; // rows of 10, 20, … are easier to read by number
  const beside = Math.min(abreast, pool.nodes.length);
  const room = Math.floor(((width + between) / beside - between + gap) / columns - gap);
  return { columns, abreast, room: Math.max(least, Math.min(stretch, room)) };
}

/** The cells of a pool, {gpus, node, x, y, width, height}, and the names of its nodes, {node, x, y, width}. */
function placedPool(pool, kind, { columns, abreast }, wide, ruler, room) {
  const { gap, label } = kind;
  const block = columns * (wide + gap) - gap;
  const rest = room - abreast * (block + kind.between) + kind.between;
  const isFull = ruler && abreast > 1 && pool.nodes.length >= abreast;
  const between = kind.between + (isFull ? Math.min(kind.between, Math.floor(rest / (abreast - 1))) : 0);
  const cells = [];
  const labels = [];
  let [x, y, height] = [ruler, 0, 0];
  let named = -Infinity;
  pool.nodes.forEach((node, number) => {
    if (number && number % abreast === 0) [x, y, height] = [ruler, y + height + kind.between, 0];
    const groups = kind.name === "node" ? [node.gpus] : node.gpus.map((gpu) => [gpu]);
    groups.forEach((gpus, at) => cells.push({
      gpus,
      node,
      x: x + (at % columns) * (wide + gap),
      y: y + label + Math.floor(at / columns) * (kind.height + gap),
      width: wide,
      height: kind.height,
    }));
    const rows = Math.ceil(groups.length / columns) * (kind.height + gap) - gap;
    if (label) labels.push({ node, x, y: y + label / 2 - 1, width: block });
    else if (number % abreast === 0 && y - named >= LEAST_LABEL) {
      labels.push({ node, x: 0, y: y + Math.max(rows / 2, 6), width: ruler - 8, isRuler: true });
      named = y;
    }
    height = Math.max(height, label + rows);
    x += block + between;
  });
  return { cells, labels, height: y + Math.max(height, ruler ? LEAST_LABEL : 0) + 2 };
}
