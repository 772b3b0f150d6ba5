// The tab: one or two runs, each with its report (a frame) and its trace (a canvas).
const at = (route, run) => {
  const url = new URL(route, import.meta.url);
  if (run !== undefined) url.searchParams.set("run", run);
  return url;
};

function make(tag, parent, fields = {}) {
  const one = Object.assign(document.createElement(tag), fields);
  parent.append(one);
  return one;
}

export async function render() {
  make("link", document.head, { rel: "stylesheet", href: at("style.css") });
  if (parent !== window) followTensorBoard();
  const main = make("main", document.body);
  try {
    const runs = await (await fetch(at("runs"))).json();
    if (!runs.length) {
      main.textContent = "No runs: graphdoctor analyze model.py --trace-dir DIR leaves them.";
      return;
    }
    pane(main, runs, 0, "Run");
    pane(main, runs, -1, "Beside");
  } catch (error) {
    main.textContent = `The runs cannot be read: ${error}`;
  }
}

// Dark by TensorBoard's own switch, which frames do not learn from the browser.
function followTensorBoard() {
  const board = parent.document.body;
  const follow = () => {
    const isDark = board.classList.contains("dark-mode");
    document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  };
  new MutationObserver(follow).observe(board, { attributeFilter: ["class"] });
  follow();
}

function pane(main, runs, first, title) {
  const section = make("section", main);
  const label = make("label", section, { textContent: title + " " });
  const select = make("select", label);
  if (first < 0) make("option", select, { value: "-1", textContent: "none" });
  runs.forEach((run, i) => make("option", select, { value: String(i), textContent: run.name }));
  select.value = String(first);
  const body = make("div", section);
  const show = () => {
    body.replaceChildren();
    const run = runs[Number(select.value)];
    section.classList.toggle("none", !run);
    if (!run) return;
    if (run.trace) trace(body, run.name);
    if (run.report) {
      const frame = make("iframe", body, { title: "Report of " + run.name });
      frame.setAttribute("sandbox", "allow-scripts");
      frame.src = at("report", run.name);
    } else make("p", body, { textContent: "No report was saved with this run." });
  };
  select.onchange = show;
  show();
}

async function trace(body, run) {
  const box = make("div", body);
  const search = make("input", box, { type: "search", placeholder: "Find in the trace (Enter: next)" });
  search.setAttribute("aria-label", "Find in the trace");
  const said = make("p", box, { textContent: "Reading the trace..." });
  const canvas = make("canvas", box);
  const answer = await fetch(at("trace", run));
  if (!answer.ok) { said.textContent = await answer.text(); return; }
  const { names, rows, problem } = await answer.json();
  for (const row of rows) {
    const n = row.spans.length / 3;
    row.start = new Float64Array(n); row.stop = new Float64Array(n); row.name = new Uint32Array(n);
    for (let i = 0; i < n; i++) {
      row.start[i] = row.spans[3 * i];
      row.stop[i] = row.start[i] + row.spans[3 * i + 1];
      row.name[i] = row.spans[3 * i + 2];
    }
    delete row.spans;
  }
  const events = rows.reduce((sum, row) => sum + row.start.length, 0);
  const all = Math.max(1, ...rows.map((row) => row.end));
  const HIGH = 16, colors = names.map((_, i) => `hsl(${(i * 67) % 360} 50% 55%)`);
  let from = 0, span = all, top = 0, hits = null, last = -1, waits = false;
  said.textContent = `${events.toLocaleString("en")} events. Wheel: zoom; drag: move. ${problem}`;

  // The first span of a row that ends after a time.
  const after = (row, time) => {
    let low = 0, high = row.stop.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (row.stop[mid] > time) high = mid; else low = mid + 1;
    }
    return low;
  };
  function draw() {
    waits = false;
    const began = performance.now(), wide = canvas.clientWidth, high = canvas.clientHeight;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * scale)) canvas.width = Math.round(wide * scale);
    if (canvas.height !== Math.round(high * scale)) canvas.height = Math.round(high * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "11px system-ui, sans-serif";
    const pixel = span / wide;
    rows.forEach((row, r) => {
      const y = r * HIGH - top;
      if (y < -HIGH || y > high) return;
      // What is within a pixel that is painted is skipped, so that the work follows the width.
      for (let i = after(row, from); i < row.start.length && row.start[i] < from + span;) {
        const x = (row.start[i] - from) / pixel, w = Math.max(1, (row.stop[i] - row.start[i]) / pixel);
        pen.globalAlpha = hits && !hits.has(row.name[i]) ? 0.15 : 1;
        pen.fillStyle = colors[row.name[i]];
        pen.fillRect(x, y + 1, w, HIGH - 2);
        if (w > 40) {
          pen.save();
          pen.beginPath(); pen.rect(Math.max(0, x), y, w, HIGH); pen.clip();
          pen.fillStyle = "#000";
          pen.fillText(names[row.name[i]], Math.max(0, x) + 3, y + 12);
          pen.restore();
        }
        i = Math.max(i + 1, after(row, row.start[i] + pixel));
      }
    });
    pen.globalAlpha = 1;
    canvas.dataset.redrawMs = String(performance.now() - began);
    canvas.dataset.events = String(events);
  }
  const redraw = () => { if (!waits) { waits = true; requestAnimationFrame(draw); } };
  canvas.onwheel = (event) => {
    event.preventDefault();
    const share = event.offsetX / canvas.clientWidth, mid = from + share * span;
    span = Math.min(all, Math.max(0.01, span * Math.exp(event.deltaY / 400)));
    from = Math.max(0, Math.min(all - span, mid - share * span));
    redraw();
  };
  canvas.onpointerdown = (event) => canvas.setPointerCapture(event.pointerId);
  canvas.onpointermove = (event) => {
    if (event.buttons) {
      from = Math.max(0, Math.min(all - span, from - (event.movementX / canvas.clientWidth) * span));
      top = Math.max(0, Math.min(Math.max(0, rows.length * HIGH - canvas.clientHeight), top - event.movementY));
      redraw();
      return;
    }
    const row = rows[Math.floor((event.offsetY + top) / HIGH)];
    const time = from + (event.offsetX / canvas.clientWidth) * span;
    const i = row ? after(row, time) : -1;
    if (row && i < row.start.length && row.start[i] <= time) {
      said.textContent = `${names[row.name[i]]}: ${(row.stop[i] - row.start[i]).toFixed(1)} us, thread ${row.thread}`;
    }
  };
  search.oninput = () => {
    const text = search.value.toLowerCase();
    hits = text ? new Set(names.flatMap((name, i) => (name.toLowerCase().includes(text) ? [i] : []))) : null;
    last = -1;
    redraw();
  };
  search.onkeydown = (event) => {
    if (event.key !== "Enter" || !hits) return;
    const found = rows.flatMap((row, r) => [...row.name.keys()].filter((i) => hits.has(row.name[i])).map((i) => [r, i]));
    if (!found.length) { said.textContent = "Nothing found."; return; }
    found.sort(([r, i], [s, j]) => rows[r].start[i] - rows[s].start[j]);
    last = (last + 1) % found.length;
    const [r, i] = found[last], row = rows[r];
    span = Math.min(all, Math.max(0.01, 10 * (row.stop[i] - row.start[i])));
    from = Math.max(0, Math.min(all - span, row.start[i] - span / 2));
    top = Math.max(0, r * HIGH - canvas.clientHeight / 2);
    said.textContent = `${last + 1} of ${found.length}: ${names[row.name[i]]}`;
    redraw();
  };
  new ResizeObserver(redraw).observe(canvas);
}
