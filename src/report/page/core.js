// Elements, numbers as text, the tooltip, tables, figures. Text from the report reaches the page as text nodes only.
const h = (tag, props, ...kids) => {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (v == null || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "text") e.textContent = v;
    else e.setAttribute(k, v === true ? "" : v);
  }
  for (const kid of kids.flat()) if (kid != null && kid !== false) e.append(kid);
  return e;
};
const byId = id => document.getElementById(id);
const known = v => typeof v === "number" && isFinite(v);
const list = v => Array.isArray(v) ? v : [];
const some = v => Array.isArray(v) && v.length > 0;

// Three significant digits, without exponents up to 1e15; thousands apart by a thin space.
function digits(v, n = 3) {
  if (!known(v)) return "-";
  if (v === 0) return "0";
  const a = Math.abs(v);
  if (a >= 1e15 || a < 1e-5) return v.toExponential(n - 1);
  const places = Math.max(0, n - 1 - Math.floor(Math.log10(a)));
  let s = v.toFixed(Math.min(places, 20));
  if (s.includes(".")) s = s.replace(/\.?0+$/, "");
  const [whole, part] = s.split(".");
  const grouped = whole.length > 4 + (v < 0) ? whole.replace(/\B(?=(\d{3})+$)/g, "\u2009") : whole;
  return part ? grouped + "." + part : grouped;
}
function scaled(v, units, base) {
  let i = 0;
  while (i + 1 < units.length && Math.abs(v) >= base * (1 - 5e-4)) v /= base, i++;
  return digits(v) + "\u00a0" + units[i];
}
const bytes = v => known(v) ? scaled(v, ["B", "kB", "MB", "GB", "TB", "PB"], 1000) : "-";
const si = (v, unit = "") => known(v) ? scaled(v, ["", "k", "M", "G", "T", "P", "E"].map(p => p + unit), 1000).replace(/\u00a0$/, "") : "-";
function percent(v) {
  if (!known(v)) return "-";
  const a = Math.abs(v) * 100;
  return (a >= 99.95 || a === 0 ? digits(v * 100) : a < 0.995 ? digits(v * 100, 2) : (v * 100).toFixed(1)) + "\u00a0%";
}
function seconds(v) {
  if (!known(v)) return "-";
  const a = Math.abs(v);
  if (a === 0) return "0\u00a0s";
  if (a < 1e-3) return digits(v * 1e6) + "\u00a0\u00b5s";
  if (a < 1) return digits(v * 1e3) + "\u00a0ms";
  if (a < 120) return digits(v) + "\u00a0s";
  if (a < 7200) return digits(v / 60) + "\u00a0min";
  if (a < 172800) return digits(v / 3600) + "\u00a0h";
  return digits(v / 86400) + "\u00a0days";
}
const signed = (format, v) => (v > 0 ? "+" : v < 0 ? "\u2212" : "") + format(Math.abs(v));
const inUnit = unit => unit === "bytes" || unit === "B" ? bytes : unit === "s" ? seconds : v => si(v, unit || "");
const plain = v => v == null ? "-" : typeof v === "number" ? digits(v, 5) : String(v);

// What belongs to the reader and outlives a redraw: open tables, chosen ranks.
const kept = new Map();

const tip = {
  show(text, x, y) {
    const e = byId("tip");
    if (e.textContent !== text) e.textContent = text;
    e.hidden = false;
    const w = e.offsetWidth, t = e.offsetHeight;
    e.style.left = Math.max(4, Math.min(x + 14, innerWidth - w - 4)) + "px";
    e.style.top = Math.max(4, y + 18 + t > innerHeight ? y - t - 10 : y + 18) + "px";
  },
  hide() { byId("tip").hidden = true; },
};

// columns: [{name, n: it is a number}]; rows: arrays of text or nodes.
function tableOf(columns, rows, classOf) {
  const cell = (tag, c, v) => h(tag, {class: c.n ? "n" : c.long && tag === "td" ? "long" : c.tight ? "tight" : null, scope: tag === "th" ? "col" : null}, v == null ? "-" : v);
  return h("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": "Table"},
    h("table", {}, h("thead", {}, h("tr", {}, columns.map(c => cell("th", c, c.name)))),
      h("tbody", {}, rows.map((r, i) => h("tr", {class: classOf ? classOf(i) : null}, columns.map((c, k) => cell("td", c, r[k])))))));
}

// Filled when it is opened: tables of 1,000 rows cost nothing until then.
function dataTable(id, columns, rows) {
  const d = h("details", {class: "data", "data-table": id}, h("summary", {text: "Table"}));
  const fill = () => { if (d.children.length === 1) d.append(tableOf(columns, typeof rows === "function" ? rows() : rows)); };
  d.addEventListener("toggle", () => { if (d.open) fill(); kept.set("table " + id, d.open); });
  if (kept.get("table " + id)) { fill(); d.open = true; }
  return d;
}

// A chart with its title, its legend and the table behind it. draw(host, width) draws into an empty host.
const drawn = new Set();
function figure(o) {
  const host = h("div", {class: "plot"});
  const f = h("figure", {class: "card chart" + (o.wide ? " wide" : o.span2 ? " span2" : ""), "data-chart": o.id},
    h("figcaption", {}, h("div", {class: "row"}, h("h3", {text: o.title}), o.tool || null), o.sub ? h("p", {class: "sub", text: o.sub}) : null),
    o.legend || null, host, o.below || null, o.columns ? dataTable(o.id, o.columns, o.rows) : null);
  const entry = {host, draw: o.draw, width: 0};
  f.redraw = () => { entry.width = 0; drawEntry(entry); };
  drawn.add(entry);
  return f;
}
function drawEntry(e, forced) {
  if (!e.host.isConnected) { drawn.delete(e); return; }
  const width = Math.floor(forced || e.host.clientWidth);
  if (width < 40 || width === e.width) return;
  e.width = width;
  e.host.replaceChildren();
  e.draw(e.host, width);
}
const drawAll = forced => { for (const e of [...drawn]) drawEntry(e, forced); };
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { tip.hide(); drawAll(); }, 120); });
addEventListener("beforeprint", () => { tip.hide(); for (const e of [...drawn]) drawEntry(e, e.host.closest(".wide, .span2") ? 700 : 340); });
addEventListener("afterprint", () => setTimeout(() => drawAll(), 0));

const why = text => h("p", {class: "why", text});
const card = (...kids) => h("div", {class: "card"}, kids);

function copyButton(label, text) {
  const b = h("button", {type: "button", text: label});
  b.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // without the permission, or on plain HTTP
      const area = h("textarea", {style: "position:fixed;opacity:0"});
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    b.textContent = done ? "Copied" : "Copying is not allowed here";
    setTimeout(() => { b.textContent = label; }, 1500);
  });
  return b;
}

// Auto follows the system; the choice stays in this browser where it may store one.
function themes() {
  const names = ["auto", "light", "dark"];
  const shown = {auto: "Auto", light: "Light", dark: "Dark"};
  const button = byId("theme");
  let now = "auto";
  try { now = localStorage.getItem("trireme-theme") || "auto"; } catch { /* storage is off */ }
  const apply = () => {
    if (!names.includes(now)) now = "auto";
    if (now === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", now);
    button.textContent = shown[now];
    button.setAttribute("aria-label", "Colours: " + (now === "auto" ? "as the system" : now));
  };
  button.addEventListener("click", () => {
    now = names[(names.indexOf(now) + 1) % 3];
    try { localStorage.setItem("trireme-theme", now); } catch { /* storage is off */ }
    apply();
  });
  apply();
}
