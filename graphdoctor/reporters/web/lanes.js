"use strict";
/* Bars on lanes over time, as inline SVG: only what can be seen is drawn. Bars of one row follow each other.
   Where several share a pixel, the height of each colour is its share of that pixel's time. */
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("data").textContent);
  const stage = document.getElementById("lanes");
  const HEAD = stage.clientWidth < 560 ? 58 : 92; // px for the names of the rows
  const LANE = 24, THIN = 13, GAP = 4, AXIS = 20, TITLE = 22, LETTER = 6.3;
  const COUNT = data.fields[0].of.length;

  const text = (field, item) => {
    const value = data.fields[field].of[item];
    const texts = data.fields[field].texts;
    return texts ? (value === undefined || value < 0 ? "" : texts[value]) : value ? String(value) : "";
  };
  const short = (item) => data.shorts[data.fields[0].of[item]];
  const time = (ticks) => {
    const us = ticks / data.ticks;
    const [scale, unit] = Math.abs(us) < 1e3 ? [1, "\u00b5s"] : Math.abs(us) < 1e6 ? [1e3, "ms"] : [1e6, "s"];
    const value = us / scale;
    const digits = Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2;
    return `${Number(value.toFixed(digits)).toLocaleString("en")} ${unit}`;
  };

  /* Rows of modules, from the operators that each one holds on its host lane, one row for each depth. */
  const moduleRows = (row) => {
    if (data.nest === undefined) return [];
    const paths = data.fields[data.nest].texts.map((path) => (path ? path.split(".") : []));
    const rows = [];
    for (let depth = 0; depth < data.depths; depth++) {
      const made = { title: depth ? "" : "Modules", thin: true, at: [], len: [], kind: [], item: [], label: [] };
      let before = null;
      for (let i = 0; i < row.at.length; i++) {
        const path = paths[data.fields[data.nest].of[row.item[i]]] || [];
        const name = path.length > depth ? path.slice(0, depth + 1).join(".") : null;
        const last = made.at.length - 1;
        if (name !== null && name === before) made.len[last] = row.at[i] + row.len[i] - made.at[last];
        else if (name !== null) {
          made.at.push(row.at[i]); made.len.push(row.len[i]); made.item.push(row.item[i]);
          made.kind.push(data.moduleKind); made.label.push(depth ? path[depth] : name);
        }
        before = name;
      }
      if (made.at.length) rows.push(made);
    }
    return rows;
  };
  for (const group of data.groups) {
    if (group.nested) group.rows.unshift(...moduleRows(group.rows[0]));
  }

  const view = { from: 0, to: data.end };
  const state = { chosen: -1, found: null, order: [] };
  let svg, width = 0;

  const element = (name, attributes, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const x = (ticks) => HEAD + ((ticks - view.from) / (view.to - view.from)) * (width - HEAD);
  const firstVisible = (row) => {
    let low = 0, high = row.at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.at[middle] + row.len[middle] < view.from) low = middle + 1; else high = middle;
    }
    return low;
  };

  /* One path for each kind; names of bars that have room for one; the bars that were searched for. */
  const drawRow = (row, y, height) => {
    const paths = data.kinds.map(() => "");
    const shares = data.kinds.map(() => null);
    const names = [];
    let found = "", until = 0;
    for (let i = firstVisible(row); i < row.at.length && row.at[i] <= view.to; i++) {
      const left = Math.max(x(row.at[i]), HEAD), right = Math.min(x(row.at[i] + row.len[i]), width);
      const size = right - left, kind = row.kind[i];
      if (size >= 0.7) {
        const drawn = (size > 4 ? size - 0.6 : size).toFixed(1);
        paths[kind] += `M${left.toFixed(1)} ${y}h${drawn}v${height}h-${drawn}z`;
        if (size > 30) names.push([left, size, row.label ? row.label[i] : short(row.item[i]), kind]);
      } else {
        shares[kind] ??= new Float32Array(Math.ceil(width) + 2);
        const pixel = Math.floor(left), within = Math.min(size, pixel + 1 - left);
        shares[kind][pixel] += Math.max(within, 0);
        shares[kind][pixel + 1] += Math.max(size - within, 0);
      }
      if (state.found && right > until && state.found.has(row.item[i])) {
        until = left + Math.max(size, 1.5);
        const wide = (until - left).toFixed(1);
        found += `M${left.toFixed(1)} ${y - 2}h${wide}v${height + 4}h-${wide}z`;
      }
    }
    const base = new Float32Array(Math.ceil(width) + 2);
    shares.forEach((share, kind) => {
      if (!share) return;
      share.forEach((part, pixel) => {
        if (part < 0.02) return;
        const tall = Math.min(part, 1 - base[pixel]) * height;
        if (tall <= 0) return;
        paths[kind] += `M${pixel} ${(y + height - base[pixel] * height - tall).toFixed(1)}h1v${tall.toFixed(1)}h-1z`;
        base[pixel] += part;
      });
    });
    const parts = paths.flatMap((d, kind) => (d ? [element("path", { d, class: `bar ${data.kinds[kind].class}` })] : []));
    if (found) parts.push(element("path", { d: found, class: "found" }));
    for (const [left, size, name, kind] of names) {
      const letters = Math.floor((size - 8) / LETTER);
      if (letters < Math.min(name.length, 6)) continue; // a beginning that short says nothing
      const shown = name.length > letters ? name.slice(0, letters - 1) + "\u2026" : name;
      parts.push(element("text", { x: left + 4, y: y + height / 2 + 4, class: `name on-${data.kinds[kind].class}` }, shown));
    }
    return parts;
  };

  const drawAxis = (y, bottom) => {
    const span = view.to - view.from, wanted = (width - HEAD) / 110;
    const rough = span / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const parts = [];
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      parts.push(element("line", { x1: x(at), x2: x(at), y1: y, y2: bottom, class: "grid" }));
      if (x(at) < width - 24) parts.push(element("text", { x: x(at) + 3, y: y + 11, class: "tick" }, time(at)));
    }
    return parts;
  };

  const drawMarks = (row, y) => {
    const places = [];
    for (let i = firstVisible(row); data.findings && i < row.at.length && row.at[i] <= view.to; i++) {
      const number = data.findings[row.item[i]], left = Math.max(x(row.at[i]), HEAD);
      if (!number || row.kind[i] !== 0 || (places.length && left - places.at(-1)[0] < 8)) continue;
      places.push([left, number]);
    }
    const parts = places.map(([left]) => element("path", { d: `M${left} ${y + 9}l-5 -8h10z`, class: "mark" }));
    places.forEach(([left, number], i) => {
      if (i + 1 < places.length && places[i + 1][0] - left < 22) return; // no room for its number
      parts.push(element("text", { x: left + 7, y: y + 9, class: "tick" }, String(number)));
    });
    return parts;
  };

  const hits = []; // [top, bottom, row]
  const draw = () => {
    width = stage.clientWidth;
    const lanes = [], marks = [];
    hits.length = 0;
    let y = AXIS;
    for (const group of data.groups) {
      lanes.push(element("text", { x: 0, y: y + 15, class: "title" }, group.title));
      if (group.remark) lanes.push(element("text", { x: HEAD, y: y + 15, class: "tick" }, group.remark));
      y += TITLE;
      for (const row of group.rows) {
        const height = row.thin ? THIN : LANE;
        if (row.marked) { marks.push(...drawMarks(row, y)); y += 12; }
        lanes.push(element("text", { x: 0, y: y + height / 2 + 4, class: "row" }, row.title));
        lanes.push(element("rect", { x: HEAD, y, width: Math.max(width - HEAD, 0), height, class: "lane" }));
        lanes.push(...drawRow(row, y, height));
        hits.push([y, y + height, row]);
        y += height + GAP;
      }
      y += 8;
    }
    const chosen = state.chosen < 0 ? [] : barsOf(state.chosen).flatMap(([row, i]) => {
      const [top, bottom] = hits.find((hit) => hit[2] === row);
      const left = Math.max(x(row.at[i]), HEAD), right = Math.min(x(row.at[i] + row.len[i]), width);
      return right < HEAD || left > width ? [] : [element("rect", {
        x: left, y: top - 1, width: Math.max(right - left, 2), height: bottom - top + 2, class: "chosen" })];
    });
    const made = element("svg", { width, height: y, "aria-hidden": "true", focusable: "false" },
      ...drawAxis(0, y), ...lanes, ...marks, ...chosen);
    if (svg) svg.replaceWith(made); else stage.append(made);
    svg = made;
    const whole = view.from <= 0 && view.to >= data.end;
    document.getElementById("seen").textContent = whole
      ? `all of ${time(data.end)}` : `${time(view.from)} to ${time(view.to)} of ${time(data.end)}`;
  };

  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };

  const allRows = data.groups.flatMap((group) => group.rows);
  const bars = new Map(); // item -> [row, index] of every bar of it but the modules'
  const barsOf = (item) => {
    if (!bars.size) {
      for (const row of allRows) {
        if (row.label) continue;
        row.item.forEach((one, i) => { if (bars.has(one)) bars.get(one).push([row, i]); else bars.set(one, [[row, i]]); });
      }
    }
    return bars.get(item) || [];
  };

  const look = (from, to) => {
    const span = Math.min(Math.max(to - from, 20), data.end);
    view.from = Math.min(Math.max(from, 0), data.end - span);
    view.to = view.from + span;
    redraw();
  };
  const zoom = (factor, at = (view.from + view.to) / 2) =>
    look(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const pan = (share) => look(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  window.graphdoctorLanes = { COUNT, barsOf, data, draw, hits, look, pan, redraw, stage, state, text, time, view, zoom,
    ticksAt: (px) => view.from + ((px - HEAD) / (width - HEAD)) * (view.to - view.from), HEAD };
})();
