/* The scripts of a report: figures on canvas, tables that sort and filter. No network, no library.

   Every section has what its figure is as JSON in <script class="figure">, and names the table of its
   data, <script id="table-ID">, which sections may share. Large columns are packed: little-endian numbers, the first bytes of all
   of them, then the second ones, ..., deflated, in base64 (html_page/packed.py writes them). */
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value != null) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  /* ---------- numbers ---------- */

  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  const BINARY = [[2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"], [1, ""]];
  const PREFIXED = new Set(["s", "J", "W", "B", "B/s", "FLOP/s", "FLOP"]);

  function plain(value, digits = 5) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    if (!size) return "0";
    if (size < 1e-4 || size >= 1e9) return value.toExponential(digits - 2);
    return Number.isInteger(value) || size >= 1e5
      ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(digits)));
  }

  /* The unit that times of whole runs are said in. */
  const spell = (seconds) => [[86400, "days"], [3600, "h"], [60, "min"]].find(([least]) => seconds >= 2 * least) || [1, "s"];

  function quantity(value, unit, digits = 4) {
    if (unit === "duration") return `${plain(value / spell(value)[0], digits)} ${spell(value)[1]}`;
    if (typeof value !== "number" || !PREFIXED.has(unit) || !value) return unit ? `${plain(value, digits)} ${unit}` : plain(value, digits);
    const size = Math.abs(value);
    const [scale, prefix] = (unit === "B" ? BINARY : PREFIXES).find(([least]) => size >= least) || [1e-9, "n"];
    if (unit === "s" && scale > 1) return `${plain(value, digits)} s`;
    return `${plain(value / scale, digits)} ${prefix}${unit}`;
  }

  function niceStep(span, count) {
    const raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
    return power * ([1, 2, 5].find((step) => step * power >= raw) || 10);
  }

  function ticks(low, high, count, log) {
    const found = [];
    if (log) {
      const every = Math.max(1, Math.ceil((high - low) / count));
      if (high - low >= 1) {
        for (let power = Math.ceil(low - 1e-9); power <= high + 1e-9; power += every) found.push(power);
        if (found.length > 1) return found;
      }
      const step = niceStep(10 ** high - 10 ** low, count);
      for (let v = Math.ceil(10 ** low / step) * step; v <= 10 ** high; v += step) if (v > 0) found.push(Math.log10(v));
      return found;
    }
    const step = niceStep(high - low, count);
    if (!(step > 0)) return [low];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found;
  }

  /* ---------- packed columns ---------- */

  const TYPES = { i4: [Int32Array, 4], u1: [Uint8Array, 1], u2: [Uint16Array, 2], u4: [Uint32Array, 4], f4: [Float32Array, 4] };

  async function unpack(column) {
    if (Array.isArray(column)) return column;
    const [Kind, width] = TYPES[column.type];
    const letters = atob(column.data), packed = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const bytes = new Uint8Array(planes.length), count = planes.length / width;
    for (let byte = 0; byte < width; byte++)
      for (let i = 0; i < count; i++) bytes[i * width + byte] = planes[byte * count + i];
    return new Kind(bytes.buffer);
  }

  async function unpackTable(table) {
    await Promise.all(table.columns.map(async (column) => {
      const values = await unpack(column.values);
      if (column.words) column.values = Array.from(values, (code) => column.words[code]);
      else if (values instanceof Float32Array) column.values = Array.from(values, (v) => (Number.isNaN(v) ? null : Number(v.toPrecision(7))));
      else column.values = values;
    }));
    table.size = table.columns.length ? table.columns[0].values.length : 0;
    return table;
  }

  /* ---------- light and dark ---------- */

  const redraws = new Set();
  const redrawAll = () => redraws.forEach((draw) => draw());
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function themeSwitch() {
    const button = $("#theme"), order = ["auto", "light", "dark"];
    let chosen = "auto";
    try { chosen = localStorage.getItem("ridgeline-theme") || "auto"; } catch { /* files may have no storage */ }
    const apply = () => {
      if (chosen === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = chosen;
      button.textContent = `Theme: ${chosen}`;
      redrawAll();
    };
    button.addEventListener("click", () => {
      chosen = order[(order.indexOf(chosen) + 1) % order.length];
      try { localStorage.setItem("ridgeline-theme", chosen); } catch { /* as above */ }
      apply();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
    apply();
  }

  /* ---------- a canvas with a view that pans and zooms ---------- */

  class Plot {
    /* `box` gets canvas, buttons and a line that says what is selected. Subclasses define
       draw(context), hover(x, y) -> text or null, and `home`: the whole view. */
    constructor(box, label, height) {
      this.box = box;
      this.height = height;
      this.pad = { left: 64, right: 14, top: 20, bottom: 40 };
      this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `${label}. Keys: arrows move, plus and minus zoom, 0 shows all.` });
      this.reading = element("output", { class: "reading", "aria-live": "polite" });
      const zoom = (factor) => () => this.zoom(factor);
      this.buttons = element("div", { class: "buttons", role: "group", "aria-label": "View" },
        element("button", { type: "button", "aria-label": "Zoom in", onclick: zoom(0.6) }, "+"),
        element("button", { type: "button", "aria-label": "Zoom out", onclick: zoom(1 / 0.6) }, "−"),
        element("button", { type: "button", onclick: () => this.reset() }, "Show all"));
      this.frame = element("div", { class: "frame" }, this.canvas);
      box.replaceChildren(this.buttons, this.frame, this.reading);
      this.pointers = new Map();
      this.listen();
    }

    start(home) {
      this.home = home;
      this.view = { ...home };
      new ResizeObserver(() => this.paint()).observe(this.frame);
      redraws.add(() => this.paint());
      this.paint();
    }

    get width() { return this.canvas.clientWidth || 300; }
    get inner() { return { w: Math.max(1, this.width - this.pad.left - this.pad.right), h: Math.max(1, this.height - this.pad.top - this.pad.bottom) }; }
    px(x) { return this.pad.left + ((x - this.view.x0) / (this.view.x1 - this.view.x0)) * this.inner.w; }
    py(y) { return this.pad.top + (1 - (y - this.view.y0) / (this.view.y1 - this.view.y0)) * this.inner.h; }
    atX(px) { return this.view.x0 + ((px - this.pad.left) / this.inner.w) * (this.view.x1 - this.view.x0); }
    atY(py) { return this.view.y0 + (1 - (py - this.pad.top) / this.inner.h) * (this.view.y1 - this.view.y0); }

    paint() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        const ratio = window.devicePixelRatio || 1, width = this.width;
        this.canvas.style.height = `${this.height}px`;
        if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
          this.canvas.width = Math.round(width * ratio);
          this.canvas.height = Math.round(this.height * ratio);
        }
        const context = this.canvas.getContext("2d");
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, width, this.height);
        context.font = "12px system-ui, sans-serif";
        this.ink = { ink: colour("ink"), faint: colour("faint"), grid: colour("grid"), paper: colour("paper"), accent: colour("accent") };
        this.draw(context);
      });
    }

    limit() {
      /* Keep a view inside of the whole one, and no thinner than 1e-7 of it. */
      for (const [low, high] of [["x0", "x1"], ["y0", "y1"]]) {
        const whole = this.home[high] - this.home[low];
        const span = clamp(this.view[high] - this.view[low], whole * 1e-7, whole);
        const start = clamp(this.view[low], this.home[low], this.home[high] - span);
        this.view[low] = start;
        this.view[high] = start + span;
      }
      this.paint();
    }

    zoom(factor, px = this.pad.left + this.inner.w / 2, py = this.pad.top + this.inner.h / 2) {
      const x = this.atX(px), y = this.atY(py), v = this.view;
      Object.assign(v, { x0: x - (x - v.x0) * factor, x1: x + (v.x1 - x) * factor });
      if (!this.flat) Object.assign(v, { y0: y - (y - v.y0) * factor, y1: y + (v.y1 - y) * factor });
      this.limit();
    }

    move(dx, dy) {
      const v = this.view, across = (dx / this.inner.w) * (v.x1 - v.x0), up = (dy / this.inner.h) * (v.y1 - v.y0);
      v.x0 -= across; v.x1 -= across;
      if (!this.flat) { v.y0 += up; v.y1 += up; }
      this.limit();
    }

    reset() { this.view = { ...this.home }; this.paint(); }

    listen() {
      const canvas = this.canvas;
      const place = (event) => { const r = canvas.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        this.zoom(Math.exp(clamp(event.deltaY, -50, 50) * 0.01), ...place(event));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        this.pointers.set(event.pointerId, place(event));
        canvas.setPointerCapture(event.pointerId);
        this.pressed = place(event);
      });
      canvas.addEventListener("pointermove", (event) => {
        const now = place(event), before = this.pointers.get(event.pointerId);
        if (!before) { this.point(now, event); return; }
        if (this.pointers.size === 2) {
          const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
          const gap = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]) || 1;
          this.zoom(gap(before) / gap(now), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
        } else if (!this.drag || !this.drag(before, now)) this.move(now[0] - before[0], now[1] - before[1]);
        this.pointers.set(event.pointerId, now);
      });
      const lift = (event) => {
        const now = place(event), tapped = this.pressed && Math.hypot(now[0] - this.pressed[0], now[1] - this.pressed[1]) < 4;
        this.pointers.delete(event.pointerId);
        if (this.drop) this.drop(tapped);
        if (tapped) this.say(this.hover(...now));
      };
      canvas.addEventListener("pointerup", lift);
      canvas.addEventListener("pointercancel", lift);
      canvas.addEventListener("pointerleave", () => tooltip(null));
      canvas.addEventListener("dblclick", () => this.reset());
      canvas.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const step = 60, actions = {
          ArrowLeft: () => this.move(step, 0), ArrowRight: () => this.move(-step, 0),
          ArrowUp: () => this.move(0, step), ArrowDown: () => this.move(0, -step),
          "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.reset(),
          ...this.keys,
        };
        if (!actions[event.key]) return;
        event.preventDefault();
        actions[event.key]();
      });
    }

    point([x, y], event) { tooltip(this.hover(x, y), event); }
    say(text) { this.reading.textContent = text || ""; }

    axes(context, x, y) {
      const up = y ? ticks(this.view.y0, this.view.y1, this.inner.h / 45, y.log).map((at) => [at, quantity(y.log ? 10 ** at : at, y.unit, 3)]) : [];
      if (y) this.pad.left = 14 + Math.max(24, ...up.map(([, text]) => context.measureText(text).width));
      const { ink, grid, faint } = this.ink, { w, h } = this.inner, { left, top } = this.pad;
      context.lineWidth = 1;
      context.textBaseline = "top";
      context.textAlign = "center";
      const size = x.unit === "duration" ? spell(this.view.x1)[0] : 1;
      for (const step of ticks(this.view.x0 / size, this.view.x1 / size, w / 90, x.log)) {
        const at = step * size, px = this.px(at);
        context.strokeStyle = grid;
        line(context, px, top, px, top + h);
        context.fillStyle = ink;
        const text = size > 1 ? `${plain(step)} ${spell(this.view.x1)[1]}` : quantity(x.log ? 10 ** at : at, x.unit, 4);
        context.fillText(text, clamp(px, left + 10, left + w - 14), top + h + 6);
      }
      context.textBaseline = "middle";
      context.textAlign = "right";
      for (const [at, text] of up) {
        const py = this.py(at);
        context.strokeStyle = grid;
        line(context, left, py, left + w, py);
        context.fillStyle = ink;
        context.fillText(text, left - 6, py);
      }
      context.strokeStyle = faint;
      line(context, left, top + h, left + w, top + h);
      line(context, left, top, left, top + h);
      context.fillStyle = faint;
      context.textAlign = "left";
      context.textBaseline = "bottom";
      context.fillText(x.log ? `${x.label} (logarithmic)` : x.label, left, this.height - 2);
    }

    clip(context, draw) {
      context.save();
      context.beginPath();
      context.rect(this.pad.left, this.pad.top, this.inner.w, this.inner.h);
      context.clip();
      draw();
      context.restore();
    }
  }

  function line(context, x0, y0, x1, y1) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  const bubble = element("div", { class: "tooltip", hidden: true, "aria-hidden": "true" });
  function tooltip(text, event) {
    bubble.hidden = !text;
    if (!text) return;
    bubble.textContent = text;
    const { offsetWidth: w, offsetHeight: h } = bubble;
    bubble.style.left = `${clamp(event.clientX + 12, 4, Math.max(4, innerWidth - w - 8))}px`;
    bubble.style.top = `${event.clientY + 16 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 16}px`;
  }

  function legend(entries, toggle) {
    /* Entries that can be pressed say so; the others are a plain list. */
    return element("ul", { class: "legend" }, ...entries.map(({ name, color, off }) => {
      const swatch = element("span", { class: "swatch", style: `background:${color || "currentColor"}` });
      if (!toggle) return element("li", {}, swatch, name);
      const button = element("button", { type: "button", "aria-pressed": String(!off) }, swatch, name);
      button.addEventListener("click", () => button.setAttribute("aria-pressed", String(toggle(name))));
      return element("li", {}, button);
    }));
  }

  /* ---------- lines, steps, areas and points over two axes ---------- */

  class Chart extends Plot {
    constructor(box, spec) {
      super(box, spec.label, spec.height || 340);
      this.spec = spec;
      this.hidden = new Set();
      const named = spec.series.filter((one) => one.name);
      if (named.length > 1) {
        const seen = [...new Map(named.map((one) => [one.name, one])).values()];
        this.buttons.before(legend(seen, (name) => {
          this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
          this.paint();
          return !this.hidden.has(name);
        }));
      }
      this.begin();
    }

    begin() {
      const { x, y, series } = this.spec;
      this.series = series.map((one) => ({ ...one, X: scaled(one.x, x.log), Y: scaled(one.y, y.log), L: one.low && scaled(one.low, y.log) }));
      const xs = range(this.series.map((one) => one.X), x, 0.03), ys = range([...this.series.map((one) => one.Y), ...this.series.flatMap((one) => (one.L ? [one.L] : []))], y, 0.06);
      this.start({ x0: xs[0], x1: xs[1], y0: ys[0], y1: ys[1] });
    }

    get shown() { return this.series.filter((one) => !this.hidden.has(one.name)); }

    draw(context) {
      this.axes(context, this.spec.x, this.spec.y);
      this.clip(context, () => this.shown.forEach((one) => this.drawSeries(context, one)));
      context.fillStyle = this.ink.faint;
      context.textAlign = "left";
      context.textBaseline = "top";
      context.fillText(this.spec.y.log ? `${this.spec.y.label} (logarithmic)` : this.spec.y.label, 0, 0);
      this.clip(context, () => this.shown.forEach((one) => this.drawLabels(context, one)));
    }

    drawSeries(context, one) {
      context.strokeStyle = context.fillStyle = one.color || this.ink.ink;
      context.lineWidth = one.width || 1.5;
      context.setLineDash(one.dash || []);
      if (one.kind === "points") {
        one.X.forEach((x, i) => {
          if (one.dim && one.dim[i]) return;
          context.globalAlpha = one.alpha || 0.75;
          context.beginPath();
          context.arc(this.px(x), this.py(one.Y[i]), one.size ? one.size[i] : 4, 0, 7);
          context.fill();
        });
        context.globalAlpha = 1;
        return;
      }
      const [from, to] = this.inView(one);
      const path = (values, again) => {
        for (let j = 0; j <= to - from; j++) {
          const i = again ? to - j : from + j, x = this.px(one.X[i]), y = this.py(values[i]);
          if (!j && !again) context.moveTo(x, y);
          else if (one.kind === "line" || one.kind === "band") context.lineTo(x, y);
          else if (again) { context.lineTo(this.px(one.X[Math.min(i + 1, one.X.length - 1)]), y); context.lineTo(x, y); }
          else { context.lineTo(x, this.py(values[Math.max(i - 1, from)])); context.lineTo(x, y); }
        }
      };
      context.beginPath();
      path(one.Y, false);
      if (one.L) {
        if (one.kind === "area") context.lineTo(this.px(one.X[Math.min(to + 1, one.X.length - 1)]), this.py(one.Y[to]));
        path(one.L, true);
        context.closePath();
        context.globalAlpha = one.kind === "band" ? 0.2 : 0.85;
        context.fill();
        context.globalAlpha = 1;
      } else context.stroke();
      context.setLineDash([]);
    }

    drawLabels(context, one) {
      if (!one.note) return;
      const last = one.X.length - 1, at = one.noteAt === "start" ? 0 : last;
      const x = clamp(this.px(one.X[at]), this.pad.left + 4, this.pad.left + this.inner.w - 4);
      const y = clamp(this.py(one.Y[at]), this.pad.top + 26, this.pad.top + this.inner.h - 4);
      context.textAlign = at ? "right" : "left";
      context.textBaseline = "bottom";
      context.lineWidth = 3;
      context.strokeStyle = this.ink.paper;
      context.strokeText(one.note, x, y - 2);
      context.fillStyle = this.ink.ink;
      context.fillText(one.note, x, y - 2);
    }

    inView(one) {
      const from = Math.max(0, upper(one.X, this.view.x0) - 2);
      return [from, Math.min(one.X.length - 1, upper(one.X, this.view.x1) + 1)];
    }

    hover(px, py) {
      let best = null, least = 18 * 18;
      for (const one of this.shown) {
        if (one.kind !== "points") continue;
        for (let i = 0; i < one.X.length; i++) {
          if (one.dim && one.dim[i]) continue;
          const dx = this.px(one.X[i]) - px, dy = this.py(one.Y[i]) - py, far = dx * dx + dy * dy;
          if (far < least) { least = far; best = this.describe(one, i); }
        }
      }
      if (best) return best;
      const at = this.atX(px), said = [];
      for (const one of this.shown) {
        if (one.kind === "points" || !one.name || !one.X.length || at < one.X[0] || at > one.X[one.X.length - 1]) continue;
        const i = Math.max(0, upper(one.X, at) - 1);
        const value = one.value ? one.value[i] : one.y[i];
        said.push(`${one.name}: ${quantity(value, this.spec.y.unit)}`);
      }
      if (!said.length) return null;
      const x = this.spec.x.log ? 10 ** at : at;
      return [`${this.spec.x.label.replace(/ \(.*/, "")}: ${quantity(x, this.spec.x.unit)}`, ...said].join("\n");
    }

    describe(one, i) {
      const { x, y } = this.spec;
      const text = one.text ? `${one.text[i]}\n` : one.name ? `${one.name}\n` : "";
      return `${text}${x.label}: ${quantity(one.x[i], x.unit)}\n${y.label}: ${quantity(one.y[i], y.unit)}`;
    }
  }

  const scaled = (values, log) => (log ? Array.from(values, (v) => Math.log10(v)) : values);

  function ends(values, low = Infinity, high = -Infinity) {
    for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
    return [low, high];
  }

  function range(columns, axis, margin) {
    let [low, high] = columns.reduce(([from, to], values) => ends(values, from, to), [Infinity, -Infinity]);
    if (axis.min != null) low = axis.log ? Math.log10(axis.min) : axis.min;
    if (axis.max != null) high = axis.log ? Math.log10(axis.max) : axis.max;
    if (!(low <= high)) [low, high] = [0, 1];
    const room = (high - low) * margin || Math.abs(high) * 0.1 || 1;
    const fromZero = !axis.log && low >= 0 && axis.zero !== false;
    return [axis.min != null ? low : fromZero ? 0 : low - room, axis.max != null ? high : high + room];
  }

  function upper(sorted, value, from = 0, to = sorted.length) {
    /* The first index whose value is above `value`. */
    while (from < to) {
      const middle = (from + to) >> 1;
      if (sorted[middle] <= value) from = middle + 1; else to = middle;
    }
    return from;
  }

  /* ---------- the timeline of all streams ---------- */

  class Timeline extends Plot {
    constructor(box, spec) {
      super(box, `${spec.label} Up and down choose a stream, [ and ] step from task to task.`, 100);
      this.spec = spec;
      this.flat = true;
      this.row = 0;
      this.canvas.setAttribute("aria-describedby", `${box.id}-keys`);
      this.buttons.before(legend(spec.kinds));
      this.ready = this.load();
    }

    async load() {
      const { packed, rows } = this.spec;
      const [gap, duration, kind, label] = await Promise.all([packed.gap, packed.duration, packed.kind, packed.label].map(unpack));
      const count = gap.length, begin = new Float64Array(count), end = new Float64Array(count), kinds = this.spec.kinds.length;
      for (let row = 0; row < rows.length; row++) {
        let now = 0;
        for (let i = packed.ptr[row]; i < packed.ptr[row + 1]; i++) {
          begin[i] = now + gap[i];
          now = begin[i] + duration[i];
          end[i] = now;
        }
      }
      /* sums[k][i]: how long kind k is busy in the tasks before i. Exact shares of any pixel. */
      this.sums = Array.from({ length: kinds }, () => new Float64Array(count + 1));
      for (let i = 0; i < count; i++)
        for (let k = 0; k < kinds; k++) this.sums[k][i + 1] = this.sums[k][i] + (kind[i] === k ? duration[i] : 0);
      Object.assign(this, { begin, end, kind, label, tick: this.spec.span_s / this.spec.ticks });
      this.rowHeight = rows.length > 60 ? 12 : rows.length > 12 ? 16 : 22;
      const whole = rows.length * this.rowHeight;
      this.visible = Math.min(whole, 560);
      this.pad = { left: Math.min(190, Math.max(96, this.width * 0.28)), right: 10, top: 4, bottom: 40 };
      this.height = this.visible + this.pad.top + this.pad.bottom;
      if (whole > this.visible) { // the canvas stays, rows scroll below it
        this.frame.classList.add("scrolls");
        this.frame.style.height = `${this.height}px`;
        this.frame.append(element("div", { style: `height:${whole - this.visible}px`, "aria-hidden": "true" }));
        this.frame.addEventListener("scroll", () => this.paint());
      }
      this.keys = {
        ArrowUp: () => this.select(this.row - 1), ArrowDown: () => this.select(this.row + 1),
        "[": () => this.step(-1), "]": () => this.step(1),
      };
      this.start({ x0: 0, x1: this.spec.ticks, y0: 0, y1: 1 });
    }

    get top() { return this.frame.scrollTop || 0; }
    rowY(row) { return this.pad.top + row * this.rowHeight - this.top; }

    draw(context) {
      if (!this.begin) return;
      this.pad.left = Math.min(190, Math.max(96, this.width * 0.28));
      const rows = this.spec.rows, { w } = this.inner;
      const first = Math.max(0, Math.floor(this.top / this.rowHeight));
      const last = Math.min(rows.length, Math.ceil((this.top + this.visible) / this.rowHeight) + 1);
      const axis = { label: this.spec.axis, unit: "s" };
      const view = this.view;
      this.view = { ...view, x0: view.x0 * this.tick, x1: view.x1 * this.tick };
      this.axes(context, axis, null);
      this.view = view;
      context.save();
      context.beginPath();
      context.rect(0, this.pad.top, this.width, this.visible);
      context.clip();
      this.canvasOfShares(w);
      for (let row = first; row < last; row++) this.drawRow(context, row, w);
      this.shares.getContext("2d").putImageData(this.pixels, 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(this.shares, this.pad.left, this.pad.top);
      context.restore();
      this.clip(context, () => this.drawMessages(context));
    }

    canvasOfShares(w) {
      this.across = Math.max(1, Math.floor(w));
      this.lines = this.visible;
      this.shares ??= element("canvas");
      if (this.shares.width !== this.across || this.shares.height !== this.lines) Object.assign(this.shares, { width: this.across, height: this.lines });
      this.pixels = new ImageData(this.across, this.lines);
      this.image = new Uint32Array(this.pixels.data.buffer);
      this.colours ??= this.spec.kinds.map(({ color }) => {
        const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
        return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0; // bytes of an image are red, green, blue, opacity
      });
    }

    drawRow(context, row, w) {
      const { ptr } = this.spec.packed, y = this.rowY(row), bar = this.rowHeight - 3;
      const { group, name, first } = this.spec.rows[row];
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.fillStyle = this.ink.ink;
      if (first) {
        context.strokeStyle = this.ink.grid;
        line(context, 0, y - 1, this.width, y - 1);
      }
      const label = this.rowHeight < 14 ? "11px" : "12px";
      context.font = `${row === this.row && document.activeElement === this.canvas ? "bold " : ""}${label} system-ui, sans-serif`;
      const text = first ? `${group} ${name}` : name;
      context.textAlign = "right";
      context.fillText(fitted(context, text, this.pad.left - 8), this.pad.left - 6, y + bar / 2);
      context.font = `${label} system-ui, sans-serif`;
      context.textAlign = "left";
      const per = (this.view.x1 - this.view.x0) / w;
      let i = upper(this.end, this.view.x0, ptr[row], ptr[row + 1]);
      const stop = upper(this.begin, this.view.x1, i, ptr[row + 1]);
      if (stop - i <= w / 3) {
        for (; i < stop; i++) this.drawTask(context, i, y, bar);
        return;
      }
      this.drawShares(row, i, Math.floor(w), per, Math.round(y - this.pad.top), bar);
    }

    drawShares(row, i, w, per, y, bar) {
      /* More tasks than pixels: every column of pixels gets the shares of each kind, as an image. */
      const last = this.spec.packed.ptr[row + 1], { image, colours, sums, begin, end, kind } = this;
      for (let x = 0; x < w && i < last; x++) {
        const t0 = this.view.x0 + x * per, t1 = t0 + per;
        while (i < last && end[i] <= t0) i++;
        if (i >= last) return;
        if (begin[i] >= t1) { x = Math.max(x, Math.floor((begin[i] - this.view.x0) / per) - 1); continue; }
        const next = upper(begin, t1, i, last); // tasks i .. next - 1 touch it
        let from = y + bar, exact = from;
        for (let k = 0; k < sums.length; k++) {
          let busy = sums[k][next] - sums[k][i];
          if (kind[i] === k) busy -= Math.max(0, t0 - begin[i]);
          if (kind[next - 1] === k) busy -= Math.max(0, end[next - 1] - t1);
          if (busy <= 0) continue;
          exact -= Math.min(1, busy / per) * bar;
          const to = Math.max(y, Math.round(exact));
          for (let line = from - 1; line >= to; line--) if (line >= 0 && line < this.lines) image[line * this.across + x] = colours[k];
          from = Math.min(from, to);
        }
        i = Math.max(i, next - 1);
      }
    }

    drawTask(context, i, y, bar) {
      const left = Math.max(this.px(this.begin[i]), this.pad.left), right = Math.min(this.px(this.end[i]), this.pad.left + this.inner.w);
      const wide = Math.max(right - left, 0.7);
      context.fillStyle = this.spec.kinds[this.kind[i]].color;
      context.fillRect(left, y, wide > 3 ? wide - 0.7 : wide, bar);
      if (wide > 50 && bar >= 12) {
        context.fillStyle = readableOn(this.spec.kinds[this.kind[i]].color);
        context.fillText(fitted(context, this.name(i), wide - 6), left + 3, y + bar / 2);
      }
      if (i === this.selected) {
        context.strokeStyle = this.ink.ink;
        context.lineWidth = 2;
        context.strokeRect(left, y, wide, bar);
      }
    }

    drawMessages(context) {
      const { messages } = this.spec, { x0, x1 } = this.view;
      if (!messages) return;
      const seen = [];
      for (let m = 0; m < messages.begin.length && seen.length <= 400; m++)
        if (messages.end[m] >= x0 && messages.begin[m] <= x1) seen.push(m);
      if (seen.length > 400) return; // too many to be told apart: zoom in
      context.strokeStyle = this.ink.ink;
      context.globalAlpha = 0.55;
      context.lineWidth = 1;
      for (const m of seen) {
        const half = this.rowHeight / 2, xa = this.px(messages.begin[m]), xb = this.px(messages.end[m]);
        const ya = this.rowY(messages.from[m]) + half, yb = this.rowY(messages.to[m]) + half;
        line(context, xa, ya, xb, yb);
        context.beginPath();
        context.arc(xb, yb, 2, 0, 7);
        context.stroke();
      }
      context.globalAlpha = 1;
    }

    name(i) { return this.spec.labels[this.label[i]]; }

    taskAt(px, py) {
      const row = Math.floor((py - this.pad.top + this.top) / this.rowHeight);
      if (row < 0 || row >= this.spec.rows.length || px < this.pad.left || py > this.pad.top + this.visible) return null;
      const { ptr } = this.spec.packed, at = this.atX(px), near = (this.view.x1 - this.view.x0) / this.inner.w;
      const i = upper(this.end, at - near, ptr[row], ptr[row + 1]);
      return i < ptr[row + 1] && this.begin[i] <= at + near ? [row, i] : null;
    }

    hover(px, py) {
      const found = this.begin && this.taskAt(px, py);
      return found ? this.about(...found) : null;
    }

    about(row, i) {
      const { group, name, alike } = this.spec.rows[row], s = this.tick;
      const stands = alike > 1 ? `, one of ${alike} alike` : "";
      return `${this.name(i)}\n${this.spec.kinds[this.kind[i]].name} on ${group} ${name}${stands}\n` +
        `${quantity(this.begin[i] * s, "s", 6)} + ${quantity((this.end[i] - this.begin[i]) * s, "s")}`;
    }

    select(row) {
      this.row = clamp(row, 0, this.spec.rows.length - 1);
      const y = this.row * this.rowHeight;
      if (y < this.top) this.frame.scrollTop = y;
      else if (y + this.rowHeight > this.top + this.visible) this.frame.scrollTop = y + this.rowHeight - this.visible;
      this.selected = undefined;
      const { group, name } = this.spec.rows[this.row];
      this.say(`${group} ${name}`);
      this.paint();
    }

    step(by) {
      const { ptr } = this.spec.packed, from = ptr[this.row], to = ptr[this.row + 1] - 1;
      if (to < from) return;
      const here = this.selected ?? (by > 0 ? upper(this.end, this.view.x0, from, to + 1) - 1 : upper(this.begin, this.view.x1, from, to + 1));
      const i = (this.selected = clamp(here + by, from, to));
      const span = this.view.x1 - this.view.x0;
      if (this.begin[i] < this.view.x0 || this.end[i] > this.view.x1) { this.view.x0 = this.begin[i] - span / 4; this.view.x1 = this.view.x0 + span; }
      this.say(this.about(this.row, i));
      this.limit();
    }
  }

  function readableOn(color) {
    /* Black or white, whichever has more contrast: WCAG's relative luminance. */
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  }

  function fitted(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle; else high = middle - 1;
    }
    return low ? `${text.slice(0, low)}…` : "";
  }

  /* ---------- points of a study: one selection for front, coordinates and table ---------- */

  class Selection {
    constructor(size) { this.size = size; this.masks = new Map(); this.listeners = []; }
    keep(name, test) {
      if (test) this.masks.set(name, test); else this.masks.delete(name);
      this.listeners.forEach((tell) => tell());
    }
    has(i) { for (const test of this.masks.values()) if (!test(i)) return false; return true; }
  }

  const axisOf = (column) => {
    const [low, high] = ends(column.values);
    return { label: column.label, unit: column.unit, log: low > 0 && high >= 30 * low, min: null, max: null };
  };

  function chooser(text, columns, chosen, change) {
    const select = element("select", { onchange: () => change(select.value) },
      ...columns.map((c) => element("option", { value: c.name, selected: c.name === chosen }, c.label)));
    return element("label", {}, `${text} `, select);
  }

  class Front extends Chart {
    /* Two columns of a table; the points that no other beats, joined by steps. */
    constructor(box, spec) {
      super(box, { label: spec.label, x: { label: "" }, y: { label: "" }, series: [] });
      this.front = spec;
      this.table = spec.data;
      const numeric = this.table.columns.filter((c) => c.numeric);
      this.names = { x: spec.x, y: spec.y };
      const set = (which) => (name) => { this.names[which] = name; this.rebuild(); };
      this.buttons.before(element("div", { class: "choosers" }, chooser("Across", numeric, spec.x, set("x")), chooser("Up", numeric, spec.y, set("y"))));
      spec.selection.listeners.push(() => this.rebuild(true));
      this.rebuild();
    }

    begin() { if (this.front) super.begin(); else this.start({ x0: 0, x1: 1, y0: 0, y1: 1 }); }

    rebuild(same) {
      const column = (name) => this.table.columns.find((c) => c.name === name);
      const [cx, cy] = [column(this.names.x), column(this.names.y)], rows = [];
      for (let i = 0; i < this.table.size; i++)
        if (Number.isFinite(cx.values[i]) && Number.isFinite(cy.values[i]) && this.front.selection.has(i)) rows.push(i);
      const sign = (c) => (c.better === "high" ? -1 : 1), sx = sign(cx), sy = sign(cy);
      const order = [...rows].sort((a, b) => sx * (cx.values[a] - cx.values[b]) || sy * (cy.values[a] - cy.values[b]));
      const best = [];
      for (const i of order) if (!best.length || sy * cy.values[i] < sy * cy.values[best[best.length - 1]]) best.push(i);
      if (sx < 0) best.reverse();
      const of = (c, those) => those.map((i) => c.values[i]);
      const text = (those) => those.map((i) => this.table.columns.filter((c) => c.varied).map((c) => `${c.label}: ${quantity(c.values[i], c.unit)}`).join("\n"));
      const stairs = best.length ? corners(of(cx, best), of(cy, best), sx, sy) : { x: [], y: [] };
      const view = this.view;
      this.spec = {
        x: axisOf(cx), y: axisOf(cy),
        series: [
          { kind: "points", x: of(cx, rows), y: of(cy, rows), text: text(rows), color: "#7d7d7d", alpha: 0.5, size: rows.map(() => 3) },
          { kind: "line", x: stairs.x, y: stairs.y, color: "#0072B2" },
          { kind: "points", x: of(cx, best), y: of(cy, best), text: text(best), color: "#0072B2", alpha: 1, size: best.map(() => 5) },
        ],
      };
      this.begin();
      if (same && view) { this.view = view; this.limit(); }
      const aim = (c) => `${c.better === "high" ? "large" : "small"} ${c.label}`;
      this.say(`${best.length} of ${rows.length} points are on the front: ${aim(cx)} and ${aim(cy)} are best.`);
    }
  }

  function corners(xs, ys, sx, sy) {
    /* Between two points of a front the worse value of each holds: a step, not a slope. */
    const x = [xs[0]], y = [ys[0]];
    for (let i = 1; i < xs.length; i++) {
      const flat = sx > 0; // small x is best: the y of the left point holds up to the right one
      x.push(flat ? xs[i] : xs[i - 1], xs[i]);
      y.push(flat ? ys[i - 1] : ys[i], ys[i]);
    }
    return { x, y };
  }

  class Parallel extends Plot {
    /* A line for each row over vertical axes. Dragging along an axis keeps the rows in that range. */
    constructor(box, spec) {
      super(box, `${spec.label} Drag along an axis to keep a range; the filter of the table does the same by words.`, 360);
      this.spec = spec;
      this.pad = { left: 50, right: 50, top: 46, bottom: 24 };
      this.ranges = new Map();
      this.columns = spec.columns.map((name) => spec.data.columns.find((c) => c.name === name));
      this.scales = this.columns.map((column) => {
        if (!column.numeric) {
          const words = [...new Set(column.values.map(String))];
          return { low: 0, high: Math.max(1, words.length - 1), at: (v) => words.indexOf(String(v)), words };
        }
        const { log } = axisOf(column), at = log ? Math.log10 : (v) => v;
        const [low, high] = ends(column.values.filter((v) => v !== null).map(at));
        return { low, high: high > low ? high : low + 1, at, log };
      });
      this.canvas.style.minWidth = `${84 * this.columns.length}px`;
      this.frame.classList.add("wide");
      this.buttons.replaceChildren(element("button", { type: "button", onclick: () => { this.ranges.clear(); this.tell(); } }, "Keep all"));
      spec.selection.listeners.push(() => this.paint());
      this.start({ x0: 0, x1: Math.max(1, this.columns.length - 1), y0: 0, y1: 1 });
    }

    zoom() {}
    move() {}
    share(j, i) {
      const value = this.columns[j].values[i], { low, high, at } = this.scales[j];
      return value === null ? NaN : (at(value) - low) / (high - low);
    }

    draw(context) {
      const { data, colour: by, selection } = this.spec, rows = [];
      for (let i = 0; i < data.size; i++) rows.push(i);
      const key = this.columns.findIndex((c) => c.name === by);
      const every = Math.max(1, Math.ceil(rows.length / 20000)); // more lines than that are a wash
      context.lineWidth = 1;
      for (const kept of [false, true]) {
        for (let r = 0; r < rows.length; r += every) {
          const i = rows[r];
          if (selection.has(i) !== kept) continue;
          context.globalAlpha = kept ? clamp(60 / Math.sqrt(rows.length / every), 0.15, 0.9) : 0.05;
          context.strokeStyle = kept ? shade(this.share(key, i)) : this.ink.faint;
          context.beginPath();
          this.columns.forEach((_, j) => context.lineTo(this.px(j), this.py(this.share(j, i))));
          context.stroke();
        }
      }
      context.globalAlpha = 1;
      context.textBaseline = "bottom";
      this.columns.forEach((column, j) => {
        const x = this.px(j), { low, high, log, words } = this.scales[j];
        context.strokeStyle = this.ink.ink;
        line(context, x, this.pad.top, x, this.pad.top + this.inner.h);
        context.fillStyle = this.ink.ink;
        context.textAlign = j === 0 ? "left" : j === this.columns.length - 1 ? "right" : "center";
        const room = this.inner.w / Math.max(1, this.columns.length - 1) - 6;
        const name = x + (j === 0 ? -this.pad.left + 4 : j === this.columns.length - 1 ? this.pad.right - 4 : 0);
        context.fillText(fitted(context, column.label, room + (j % (this.columns.length - 1 || 1) ? 0 : 44)), name, this.pad.top - (j % 2 ? 26 : 12));
        const say = (share) => {
          const v = low + share * (high - low);
          return words ? words[Math.round(v)] || "" : quantity(log ? 10 ** v : v, column.unit, 3);
        };
        context.textAlign = "center";
        context.fillStyle = this.ink.faint;
        for (const share of [0, 1]) context.fillText(fitted(context, say(share), room), clamp(x, 34, this.width - 34), share ? this.pad.top : this.height - 6);
        const kept = this.ranges.get(j);
        if (kept) {
          context.fillStyle = this.ink.accent;
          context.fillRect(x - 4, this.py(kept[1]), 8, Math.max(3, this.py(kept[0]) - this.py(kept[1])));
        }
      });
    }

    hover(px, py) {
      const j = clamp(Math.round(this.atX(px)), 0, this.columns.length - 1);
      if (Math.abs(this.px(j) - px) > 12) return null;
      const { low, high, log, words } = this.scales[j], v = low + this.atY(py) * (high - low);
      return `${this.columns[j].label}: ${words ? words[clamp(Math.round(v), 0, words.length - 1)] : quantity(log ? 10 ** v : v, this.columns[j].unit)}`;
    }

    drag(before, now) {
      const j = this.axis ?? (this.axis = clamp(Math.round(this.atX(before[0])), 0, this.columns.length - 1));
      this.from ??= before[1];
      const ends = [this.atY(this.from), this.atY(now[1])].map((share) => clamp(share, -0.02, 1.02));
      this.ranges.set(j, [Math.min(...ends), Math.max(...ends)]);
      this.tell();
      return true;
    }

    drop(tapped) {
      if (tapped && this.pressed) { this.ranges.delete(clamp(Math.round(this.atX(this.pressed[0])), 0, this.columns.length - 1)); this.tell(); }
      this.axis = this.from = undefined;
    }

    tell() {
      const kept = [...this.ranges];
      this.spec.selection.keep("ranges", kept.length && ((i) => kept.every(([j, [low, high]]) => { const s = this.share(j, i); return s >= low && s <= high; })));
      this.paint();
    }
  }

  function shade(share) {
    /* From dark blue over green to yellow: told apart in grey, too. */
    const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [240, 210, 40]];
    const at = clamp(Number.isFinite(share) ? share : 0, 0, 1) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at));
    return `rgb(${stops[k].map((v, i) => Math.round(v + (at - k) * (stops[k + 1][i] - v))).join(",")})`;
  }

  /* ---------- tables ---------- */

  const PAGE = 50;

  function matcher(text, columns) {
    /* Words that a row has to contain, and conditions such as  mfu>0.4  or  pass=forward. */
    const tests = text.trim().toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const [, name, sign, value] = word.match(/^([^<>=]+)(<=|>=|<|>|=)(.+)$/) || [];
      const column = name && (columns.find((c) => c.name.toLowerCase() === name) || columns.find((c) => c.name.toLowerCase().endsWith(name) || c.label.toLowerCase().replaceAll(" ", "_").startsWith(name)));
      if (!column) return (i) => columns.some((c) => String(c.values[i]).toLowerCase().includes(word));
      const number = Number(value);
      if (Number.isNaN(number)) return (i) => sign === "=" && String(column.values[i]).toLowerCase().includes(value);
      const scale = column.scale || 1;
      return (i) => { const v = column.values[i] / scale; return { "<": v < number, ">": v > number, "<=": v <= number, ">=": v >= number, "=": Math.abs(v - number) <= 1e-6 * Math.abs(number) }[sign]; };
    });
    return tests.length ? (i) => tests.every((test) => test(i)) : null;
  }

  function drawTable(box, table, selection, title) {
    let sorted = null, down = false, most = PAGE, order = [];
    const head = element("tr"), body = element("tbody"), count = element("p", { class: "count", "aria-live": "polite" });
    const filter = element("input", { type: "search", placeholder: "words, or name>3" });
    filter.addEventListener("input", () => { most = PAGE; selection.keep("filter", matcher(filter.value, table.columns)); });
    const more = element("button", { type: "button", onclick: () => { most += 10 * PAGE; fill(); } }, "Show more rows");
    const cell = (column, i) => {
      const value = column.values[i];
      const text = column.bar && typeof value === "number" ? `${(100 * value).toPrecision(3)} %` : typeof value === "number" ? plain(value / (column.scale || 1)) : value == null ? "–" : String(value);
      const made = element("td", column.numeric ? { class: "number" } : {}, text);
      if (column.bar && typeof value === "number") made.style.setProperty("--share", `${clamp(100 * value, 0, 100)}%`), made.classList.add("bar");
      return made;
    };
    const fill = () => {
      body.replaceChildren(...order.slice(0, most).map((i) => element("tr", {}, ...table.columns.map((column) => cell(column, i)))));
      count.textContent = `${order.length.toLocaleString("en")} of ${table.size.toLocaleString("en")} rows${order.length > most ? `, ${most} shown` : ""}.`;
      more.hidden = order.length <= most;
    };
    const arrange = () => {
      order = [];
      for (let i = 0; i < table.size; i++) if (selection.has(i)) order.push(i);
      if (sorted) {
        const { values } = sorted, sign = down ? -1 : 1;
        order.sort((a, b) => {
          const [va, vb] = [values[a], values[b]];
          if (va == null || vb == null) return (va == null) - (vb == null);
          return sign * (typeof va === "number" && typeof vb === "number" ? va - vb : String(va).localeCompare(String(vb), "en", { numeric: true }));
        });
      }
      fill();
    };
    table.columns.forEach((column) => {
      const heading = element("th", { scope: "col", class: column.numeric ? "number" : "" });
      const unit = column.unit_shown ? ` (${column.unit_shown})` : "";
      heading.append(element("button", { type: "button", onclick: () => {
        down = sorted === column ? !down : column.numeric;
        sorted = column;
        $$("th", head).forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        arrange();
      } }, column.label + unit));
      head.append(heading);
    });
    selection.listeners.push(arrange);
    box.replaceChildren(
      element("p", { class: "filter" }, element("label", {}, "Filter ", filter)), count,
      element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Table: ${title}` },
        element("table", {}, element("caption", { class: "hidden" }, title), element("thead", {}, head), body)), more);
    arrange();
  }

  function csv(table) {
    const quote = (value) => { const text = value == null ? "" : String(value); return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
    const lines = [table.columns.map((c) => quote(c.name)).join(",")];
    for (let i = 0; i < table.size; i++) lines.push(table.columns.map((c) => quote(c.values[i])).join(","));
    return `${lines.join("\n")}\n`;
  }

  function download(name, text) {
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function timelineTable(plot) {
    /* The tasks of a timeline as rows, made when somebody asks for them. */
    const { spec, begin, end, kind } = plot, n = begin.length, stream = new Array(n);
    for (let row = 0; row < spec.rows.length; row++)
      for (let i = spec.packed.ptr[row]; i < spec.packed.ptr[row + 1]; i++) stream[i] = `${spec.rows[row].group}/${spec.rows[row].name}`;
    const make = (name, label, values, numeric, unit) => ({ name, label, values, numeric, unit });
    return { size: n, columns: [
      make("stream", "stream", stream), make("task", "task", Array.from({ length: n }, (_, i) => plot.name(i))),
      make("kind", "kind", Array.from(kind, (k) => spec.kinds[k].name)),
      make("start_s", "start (s)", Array.from(begin, (v) => Number((v * plot.tick).toPrecision(9))), true),
      make("duration_s", "duration (s)", Array.from(end, (v, i) => Number(((v - begin[i]) * plot.tick).toPrecision(6))), true),
    ] };
  }

  /* ---------- start ---------- */

  const KINDS = { xy: Chart, timeline: Timeline, front: Front, parallel: Parallel };

  async function startFigure(section, tables) {
    const source = $("script.figure", section), box = $(".plot", section);
    const spec = source ? JSON.parse(source.textContent) : {};
    const entry = spec.table ? await tables(spec.table) : null;
    let plot = null;
    if (box && spec.type) {
      if (entry) Object.assign(spec, { data: entry.table, selection: entry.selection });
      plot = new KINDS[spec.type](box, spec);
      if (plot.ready) await plot.ready;
    }
    const details = $("details.data", section), title = $("h2", section).textContent;
    let shown = entry;
    const data = () => (shown ??= (() => { const table = timelineTable(plot); return { table, selection: new Selection(table.size) }; })());
    const holder = $(".table", section);
    if (holder) {
      const draw = () => { if (!holder.childElementCount) drawTable(holder, data().table, data().selection, title); };
      if (!details || details.open) draw();
      else details.addEventListener("toggle", draw, { once: true });
    }
    const save = $("button.csv", section);
    if (save) save.addEventListener("click", () => download(`${section.id}.csv`, csv(data().table)));
    const copy = $("button.copy", section);
    if (copy) copy.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText($("code", copy.parentElement).textContent); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren($("code", copy.parentElement)); copy.textContent = "Selected"; }
    });
    if (box) box.dataset.ready = "yes";
  }

  async function start() {
    document.documentElement.classList.add("scripted");
    document.body.append(bubble);
    themeSwitch();
    const known = new Map();
    const tables = (id) => {
      if (!known.has(id)) known.set(id, unpackTable(JSON.parse($(`#table-${id}`).textContent)).then((table) => ({ table, selection: new Selection(table.size) })));
      return known.get(id);
    };
    for (const section of $$("main section")) await startFigure(section, tables);
    document.documentElement.dataset.ready = "yes";
  }

  start();
})();
