"use strict";
/* Keyboard, pointer and search on the lanes; what is chosen is said in words below them. */
(() => {
  const lanes = window.graphdoctorLanes;
  const { barsOf, data, state, stage, text, time, view } = lanes;
  const detail = document.getElementById("detail");
  const search = document.getElementById("search");
  const said = document.getElementById("said");
  const list = document.getElementById("matches");
  const MOST_LISTED = 100;
  const rows = data.groups.flatMap((group) => group.rows).filter((row) => !row.label && row.at.length);
  const begin = (item) => { const [row, i] = barsOf(item)[0]; return row.at[i]; };
  let inOrder = null; // every item, in the order of time
  const all = () => (inOrder ??= [...new Set(rows.flatMap((row) => row.item))].sort((a, b) => begin(a) - begin(b)));

  const node = (name, content, className) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(content);
    return made;
  };

  const choose = (item, { show = true } = {}) => {
    state.chosen = item;
    const rows = node("dl", "", "facts");
    const say = (label, value) => { if (value) rows.append(node("dt", label), node("dd", value)); };
    data.fields.forEach((field, index) => say(field.label, text(index, item)));
    for (const [row, i] of barsOf(item)) {
      say(row.said || row.title, `${time(row.len[i])} of ${data.kinds[row.kind[i]].name}, from ${time(row.at[i])} on`);
    }
    const number = data.findings && data.findings[item];
    if (number) {
      const link = node("a", `Finding ${number}`);
      link.href = `#finding-${number}`;
      rows.append(node("dt", "Finding"), node("dd", link));
    }
    detail.replaceChildren(rows);
    const first = barsOf(item)[0];
    if (show && first) {
      const [row, i] = first, at = row.at[i], end = at + row.len[i], span = view.to - view.from;
      if (at < view.from || end > view.to) lanes.look(at - span / 2, at + span / 2);
    }
    lanes.redraw();
  };
  const zoomTo = (item) => {
    const [row, i] = barsOf(item)[0], len = Math.max(row.len[i], 50);
    lanes.look(row.at[i] - 6 * len, row.at[i] + 7 * len);
    choose(item);
  };
  /* To the next or previous item on its row; without one, to the first or last of the first row. */
  const step = (by, wanted = () => true) => {
    if (!rows.length) return;
    const [row, start] = state.chosen < 0 ? [rows[0], by > 0 ? -1 : rows[0].at.length] : barsOf(state.chosen)[0];
    for (let i = start + by; i >= 0 && i < row.at.length; i += by) {
      if (row.item[i] !== state.chosen && wanted(row.item[i])) return choose(row.item[i]);
    }
  };
  /* To the row above or below, at the same time. */
  const across = (by) => {
    if (state.chosen < 0) return step(1);
    const [row, i] = barsOf(state.chosen)[0], next = rows[rows.indexOf(row) + by];
    if (!next) return;
    const after = next.at.findIndex((at) => at >= row.at[i]);
    choose(next.item[after < 0 ? next.at.length - 1 : after]);
  };

  const find = () => {
    const words = search.value.trim().toLowerCase();
    state.found = null;
    list.replaceChildren();
    said.textContent = "";
    if (words) {
      const hits = data.fields.map((field) => field.texts && field.texts.map((one) => one.toLowerCase().includes(words)));
      const items = all().filter((item) => hits.some((hit, index) => hit && hit[data.fields[index].of[item]]));
      state.found = new Set(items);
      said.textContent = `${items.length.toLocaleString("en")} of ${all().length.toLocaleString("en")} match`
        + (items.length > MOST_LISTED ? `; the first ${MOST_LISTED} are listed` : "");
      for (const item of items.slice(0, MOST_LISTED)) {
        const button = node("button", text(0, item));
        button.type = "button";
        button.append(node("span", [1, 2].map((index) => text(index, item)).filter(Boolean).join(", "), "dim"));
        button.addEventListener("click", () => zoomTo(item));
        list.append(node("li", button));
      }
    }
    lanes.redraw();
  };

  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; find(); stage.focus(); }
    if (event.key === "Enter" && state.found && state.found.size) {
      event.preventDefault();
      const items = [...state.found], now = items.indexOf(state.chosen);
      zoomTo(items[(now + (event.shiftKey ? items.length - 1 : 1)) % items.length]);
    }
  });

  const KEYS = {
    "ArrowLeft": () => lanes.pan(-0.2), "ArrowRight": () => lanes.pan(0.2),
    "+": () => lanes.zoom(0.5), "=": () => lanes.zoom(0.5), "-": () => lanes.zoom(2),
    "0": () => lanes.look(0, data.end), "Home": () => lanes.look(0, view.to - view.from),
    "End": () => lanes.look(data.end, data.end + view.to - view.from),
    "ArrowUp": () => across(-1), "ArrowDown": () => across(1),
    "n": () => step(1), "p": () => step(-1), "f": () => step(1, (item) => data.findings && data.findings[item]),
    "Enter": () => { if (state.chosen >= 0) zoomTo(state.chosen); },
  };
  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); search.focus(); }
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => KEYS[button.dataset.do]());
  }

  const itemAt = (event) => {
    const box = stage.getBoundingClientRect(), at = lanes.ticksAt(event.clientX - box.left);
    const y = event.clientY - box.top - stage.clientTop;
    const hit = lanes.hits.find(([top, bottom]) => y >= top && y <= bottom);
    if (!hit || event.clientX - box.left < lanes.HEAD) return -1;
    const row = hit[2], slack = ((view.to - view.from) / stage.clientWidth) * 2;
    let best = -1, distance = Infinity;
    for (let i = 0; i < row.at.length && row.at[i] - slack <= at; i++) {
      const away = Math.max(row.at[i] - at, at - row.at[i] - row.len[i], 0);
      if (away <= slack && away <= distance) { best = i; distance = away; }
    }
    return best < 0 ? -1 : row.item[best];
  };
  let drag = null;
  stage.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
  });
  stage.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const ticks = ((event.clientX - drag.x) / (stage.clientWidth - lanes.HEAD)) * (drag.to - drag.from);
    if (Math.abs(event.clientX - drag.x) > 3 && !drag.moved) { drag.moved = true; stage.setPointerCapture(event.pointerId); }
    if (drag.moved) lanes.look(drag.from - ticks, drag.to - ticks);
  });
  stage.addEventListener("pointerup", (event) => {
    const item = drag && !drag.moved ? itemAt(event) : -1;
    drag = null;
    if (item >= 0) choose(item, { show: false });
  });
  stage.addEventListener("pointercancel", () => { drag = null; });
  stage.addEventListener("dblclick", (event) => lanes.zoom(0.4, lanes.ticksAt(event.clientX - stage.getBoundingClientRect().left)));
  stage.addEventListener("wheel", (event) => {
    const box = stage.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      lanes.zoom(Math.exp(event.deltaY * 0.003), lanes.ticksAt(event.clientX - box.left));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      lanes.pan(event.deltaX / box.width);
    }
  }, { passive: false });
  new ResizeObserver(lanes.redraw).observe(stage);
  lanes.draw();
})();
