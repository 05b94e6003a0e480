// Charts in SVG: each draws into an empty host of a given width, and can be read by mouse, finger and keyboard.

// A fill is a colour and, for what is no work, a pattern: gaps differ from work without any colour.
const fills = {
  forward: ["--blue", ""], backward: ["--sky", ""], "input gradient": ["--sky", ""], "weight gradient": ["--green", ""], recompute: ["--pink", ""],
  update: ["--violet", ""], norm: ["--pink", ""], "other work": ["--grey", ""],
  bubble: ["--orange", "up"], pp: ["--yellow", "up"], tp: ["--pink", "down"], cp: ["--yellow", "cross"], ep: ["--sky", "dots"], dp: ["--red", "down"],
  peers: ["--red", "dots"], agree: ["--violet", "dots"], disk: ["--green", "cross"], host: ["--grey", "up"], stopped: ["--red", "cross"], done: ["--line", "dots"],
  data: ["--orange", "dots"], launch: ["--grey", "cross"], save: ["--green", "up"], "between steps": ["--grey", "down"], unknown: ["--pink", "dots"], other: ["--grey", "dots"],
  weights: ["--blue", ""], grads: ["--sky", ""], optimizer: ["--violet", ""], activations: ["--orange", ""], comm: ["--pink", ""], scratch: ["--yellow", ""],
};
// The causes of the report's comb, in words.
const causeWords = {
  forward: "forward pass", backward: "backward pass", "input gradient": "backward pass, gradients of inputs", "weight gradient": "backward pass, gradients of weights",
  recompute: "activations computed again", update: "optimizer and norm", "other work": "other ops", bubble: "a message from a stage that has not made it yet",
  pp: "data in flight between stages", tp: "tensor parallel data in flight", cp: "context parallel data in flight", ep: "expert parallel data in flight", dp: "gradients or weights in flight",
  peers: "ranks that have not reached a collective", agree: "all ranks, on the norm of the gradient", disk: "the disk", host: "host memory", stopped: "a rank that has failed",
  done: "the rank's step is over", data: "input tokens", launch: "host time between two ops", save: "a checkpoint", "between steps": "other time between two steps", unknown: "no span of the trace explains it",
};
const spare = ["--blue", "--orange", "--green", "--pink", "--sky", "--red", "--violet", "--yellow"];
const spareOf = new Map();
const patterns = {
  up: [6, "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2"], down: [6, "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2"],
  cross: [6, "M0,3 h6 M3,0 v6"], dots: [5, "M1,1.5 h1.4 M3.5,4 h1.4"],
};
function fillOf(name, work) {
  const key = String(name).toLowerCase();
  if (fills[key]) return fills[key];
  if (!spareOf.has(key)) spareOf.set(key, spareOf.size);
  const i = spareOf.get(key), marks = ["up", "down", "cross", "dots"];
  return [spare[i % spare.length], work === false ? marks[i % 4] : i >= spare.length ? marks[i % 4] : ""];
}
let serial = 0;
// Returns name -> value of the attribute `style`; the patterns it needs are put into the SVG.
function painter(svg) {
  const prefix = "p" + serial++ + "-", defs = svg.append("defs"), made = new Set();
  return ([colour, pattern]) => {
    if (!pattern) return `fill:var(${colour})`;
    const id = prefix + colour.slice(2) + pattern;
    if (!made.has(id)) {
      made.add(id);
      const [size, path] = patterns[pattern];
      const p = defs.append("pattern").attr("id", id).attr("width", size).attr("height", size).attr("patternUnits", "userSpaceOnUse");
      p.append("rect").attr("width", size).attr("height", size).attr("style", `fill:var(${colour})`);
      p.append("path").attr("d", path).attr("style", "stroke:var(--mark);stroke-width:1.1;fill:none");
    }
    return `fill:url(#${id})`;
  };
}
function svgIn(host, width, height, label) {
  const svg = d3.select(host).append("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`)
    .attr("role", "img");
  svg.append("title").text(label);
  return svg;
}
function swatch(fill, kind) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), s = d3.select(svg).attr("width", 16).attr("height", 11).attr("aria-hidden", "true");
  if (kind === "line") s.append("line").attr("x2", 16).attr("y1", 5.5).attr("y2", 5.5).attr("style", `stroke:var(${fill[0]});stroke-width:2.5;stroke-dasharray:${fill[2] || "none"}`);
  else if (kind === "dot") s.append("circle").attr("cx", 8).attr("cy", 5.5).attr("r", 3.5).attr("style", `fill:var(--card);stroke:var(${fill[0]});stroke-width:2`);
  else if (kind === "circle" || kind === "diamond") s.append("path").attr("transform", "translate(8,5.5)").attr("d", d3.symbol().type(kind === "circle" ? d3.symbolCircle : d3.symbolDiamond).size(55)()).attr("style", `fill:var(${fill[0]})`);
  else s.append("rect").attr("width", 16).attr("height", 11).attr("rx", 2).attr("style", painter(s)(fill));
  return svg;
}
// items: [{name, fill, kind, value: text}]
const legend = items => h("ul", {class: "legend"}, items.map(i => h("li", {}, swatch(i.fill, i.kind), h("span", {text: i.name}), i.value ? h("b", {text: i.value}) : null)));

// The reader's place in a chart: n places, x(i) their position, text(i, row) their words, mark(i, row) shows them.
function reader(svg, o) {
  let at = -1, row = 0;
  const node = svg.node(), rows = o.rows || 1;
  svg.attr("tabindex", 0).attr("aria-label", o.label + ". Left and right arrows move" + (rows > 1 ? ", up and down change the rank." : "."));
  const scale = () => node.getBoundingClientRect().width / +node.getAttribute("width") || 1;
  const show = (i, r, x, y) => {
    at = i, row = r;
    o.mark(i, r);
    const box = node.getBoundingClientRect();
    tip.show(o.text(i, r), x == null ? box.left + o.x(i) * scale() : x, y == null ? box.top + (o.y ? o.y(r) : 10) * scale() : y);
  };
  const gone = () => { at = -1; o.mark(-1, 0); tip.hide(); };
  const pointed = e => {
    const box = node.getBoundingClientRect(), place = o.find((e.clientX - box.left) / scale(), (e.clientY - box.top) / scale());
    if (place) show(place[0], place[1] || 0, e.clientX, e.clientY); else gone();
  };
  for (const kind of ["pointermove", "pointerdown"]) node.addEventListener(kind, pointed);
  for (const kind of ["pointerleave", "blur"]) node.addEventListener(kind, gone);
  node.addEventListener("focus", () => { if (node.matches(":focus-visible") && at < 0) show(0, 0); });
  node.addEventListener("keydown", e => {
    const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -Math.ceil(o.n / 10), PageDown: Math.ceil(o.n / 10), Home: -o.n, End: o.n}[e.key];
    const down = {ArrowUp: -1, ArrowDown: 1}[e.key];
    if (e.key === "Escape") gone();
    if (step == null && (down == null || rows === 1)) return;
    e.preventDefault();
    show(Math.max(0, Math.min(o.n - 1, (at < 0 ? 0 : at) + (step || 0))), Math.max(0, Math.min(rows - 1, row + (down || 0))));
  });
  return {show};
}

function axes(svg, o) {  // o: x, y, m, width, height, xFormat, yFormat, xLabel, xTicks, yTicks
  const inner = o.width - o.m.l - o.m.r;
  if (o.y) {
    const a = d3.axisLeft(o.y).ticks(o.yTicks || 4).tickSize(-inner).tickPadding(6);
    if (o.yFormat) a.tickFormat(o.yFormat);
    if (o.yValues) a.tickValues(o.yValues);
    svg.append("g").attr("transform", `translate(${o.m.l},0)`).call(a).call(g => g.select(".domain").remove());
  }
  const a = d3.axisBottom(o.x).ticks(o.xTicks || Math.max(2, Math.floor(inner / 75))).tickSize(4).tickPadding(4);
  if (o.xFormat) a.tickFormat(o.xFormat);
  if (o.xValues) a.tickValues(o.xValues);
  svg.append("g").attr("transform", `translate(0,${o.height - o.m.b})`).call(a).selectAll(".tick").each(function (v) {
    const half = this.querySelector("text").getComputedTextLength() / 2, at = o.x(v);  // ends stay inside the chart
    if (at - half < 0) this.querySelector("text").setAttribute("dx", half - at);
    if (at + half > o.width) this.querySelector("text").setAttribute("dx", o.width - at - half);
  });
  if (o.xLabel) svg.append("text").attr("class", "soft").attr("x", o.width - o.m.r).attr("y", o.height - 2).attr("text-anchor", "end").text(o.xLabel);
}
const widest = (ticks, format) => Math.max(0, ...ticks.map(t => String(format(t)).length)) * 6.1 + 12;
function rangeOf(arrays, zero) {
  let lo = zero ? 0 : Infinity, hi = -Infinity;
  for (const a of arrays) for (const v of a) if (known(v)) lo = Math.min(lo, v), hi = Math.max(hi, v);
  if (!(hi >= lo)) return [0, 1];
  return hi > lo ? [lo, hi] : lo === 0 ? [0, 1] : [lo - Math.abs(lo) * .05, hi + Math.abs(hi) * .05];
}
const nearest = (xs, v) => {
  let i = d3.bisectLeft(xs, v);
  if (i > 0 && (i >= xs.length || v - xs[i - 1] < xs[i] - v)) i--;
  return Math.max(0, Math.min(xs.length - 1, i));
};

// o: label, x, xLabel, xFormat, series [{name, y, fill, dash, thin, format}], points [{x, y, name, fill}], zero, format, rules
function lineChart(host, width, o) {
  const height = o.height || 190, format = o.format || (v => digits(v));
  const y = d3.scaleLinear().domain(rangeOf([...o.series.map(s => s.y), ...(o.points || []).map(p => [p.y]), ...(o.rules || []).map(r => [r.y])], o.zero)).nice(4);
  const m = {t: 8, r: 14, b: 34, l: widest(y.ticks(4), o.tick || format)};
  y.range([height - m.b, m.t]);
  const x = d3.scaleLinear().domain(rangeOf([o.x, (o.points || []).map(p => p.x)])).range([m.l, width - m.r]);
  const svg = svgIn(host, width, height, o.label);
  axes(svg, {x, y, m, width, height, xFormat: o.xFormat || (v => si(v)), yFormat: o.tick || format, xLabel: o.xLabel || "step"});
  for (const r of o.rules || []) {
    svg.append("line").attr("class", "rule").attr("x1", m.l).attr("x2", width - m.r).attr("y1", y(r.y)).attr("y2", y(r.y));
    svg.append("text").attr("class", "soft halo").attr("x", width - m.r).attr("y", y(r.y) - 4).attr("text-anchor", "end").text(r.name);
  }
  const order = d3.range(o.x.length), dense = o.x.length > 1.2 * (width - m.l - m.r);
  for (const s of o.series) {
    const ok = i => known(s.y[i]) && known(o.x[i]), n = order.filter(ok).length;
    svg.append("path").attr("class", "series").attr("data-marks", n).attr("data-series", s.name)
      .attr("d", n === 1 ? d3.symbol().size(30)() : d3.line().defined(ok).x(i => x(o.x[i])).y(i => y(s.y[i]))(order))
      .attr("transform", n === 1 ? `translate(${x(o.x[order.find(ok)])},${y(s.y[order.find(ok)])})` : null)
      .attr("style", `fill:${n === 1 ? `var(${s.fill[0]})` : "none"};stroke:var(${s.fill[0]});stroke-width:${s.thin ? 1 : dense && !s.derived ? 1.1 : 2};stroke-dasharray:${s.dash || "none"};opacity:${s.thin ? .45 : 1};stroke-linejoin:round`);
  }
  for (const p of o.points || [])
    svg.append("circle").attr("class", "mark").attr("cx", x(p.x)).attr("cy", y(p.y)).attr("r", 3.5).attr("style", `fill:var(--card);stroke:var(${p.fill[0]});stroke-width:2`);
  const rule = svg.append("line").attr("class", "cursor").attr("y1", m.t).attr("y2", height - m.b).attr("opacity", 0);
  const near = i => (o.points || []).filter(p => nearest(o.x, p.x) === i);
  reader(svg, {
    label: o.label, n: o.x.length, x: i => x(o.x[i]),
    find: px => px < m.l - 10 ? null : [nearest(o.x, x.invert(px)), 0],
    mark: i => rule.attr("opacity", i < 0 ? 0 : .6).attr("x1", i < 0 ? 0 : x(o.x[i])).attr("x2", i < 0 ? 0 : x(o.x[i])),
    text: i => [`${o.xLabel || "step"} ${o.xWords ? o.xWords(o.x[i]) : digits(o.x[i], 7)}`, ...o.series.map(s => `${s.name}: ${(s.format || format)(s.y[i])}`),
      ...near(i).map(p => `${p.name}: ${format(p.y)}`)].join("\n"),
  });
}

// o: label, x, xLabel, parts [{name, y, fill}], rules [{y, name}], format
function stackChart(host, width, o) {
  const height = o.height || 210, n = o.x.length, format = o.format;
  const top = new Array(n).fill(0), layers = o.parts.map(p => {
    const base = top.slice();
    for (let i = 0; i < n; i++) top[i] += known(p.y[i]) ? p.y[i] : 0;
    return {p, base, top: top.slice()};
  });
  const y = d3.scaleLinear().domain([0, Math.max(1e-12, ...top, ...(o.rules || []).map(r => r.y * 1.06))]).nice(4);
  const step = o.binary ? binaryTicks(y.domain()[1]) : null;
  if (step) y.domain([0, step[step.length - 1]]);
  const m = {t: 10, r: 14, b: 34, l: widest(step || y.ticks(4), format)};
  y.range([height - m.b, m.t]);
  const x = d3.scaleLinear().domain(rangeOf([o.x])).range([m.l, width - m.r]);
  const svg = svgIn(host, width, height, o.label), paint = painter(svg);
  axes(svg, {x, y, m, width, height, xFormat: o.xFormat, yFormat: format, yValues: step, xLabel: o.xLabel});
  const order = d3.range(n);
  for (const l of layers)
    svg.append("path").attr("class", "series").attr("data-series", l.p.name).attr("data-marks", n)
      .attr("d", d3.area().curve(o.steps ? d3.curveStepAfter : d3.curveLinear).x(i => x(o.x[i])).y0(i => y(l.base[i])).y1(i => y(l.top[i]))(order))
      .attr("style", paint(l.p.fill) + (n > 200 ? "" : ";stroke:var(--card);stroke-width:.5"));
  for (const r of o.rules || []) {
    svg.append("line").attr("class", "rule").attr("data-rule", r.name).attr("x1", m.l).attr("x2", width - m.r).attr("y1", y(r.y)).attr("y2", y(r.y));
    svg.append("text").attr("class", "halo").attr("x", width - m.r).attr("y", y(r.y) - 4).attr("text-anchor", "end").text(`${r.name} ${format(r.y)}`);
  }
  const rule = svg.append("line").attr("class", "cursor").attr("y1", m.t).attr("y2", height - m.b).attr("opacity", 0);
  reader(svg, {
    label: o.label, n, x: i => x(o.x[i]), find: px => px < m.l - 10 ? null : [nearest(o.x, x.invert(px)), 0],
    mark: i => rule.attr("opacity", i < 0 ? 0 : .8).attr("x1", i < 0 ? 0 : x(o.x[i])).attr("x2", i < 0 ? 0 : x(o.x[i])),
    text: i => [`${o.xLabel} ${(o.xFormat || (v => digits(v, 7)))(o.x[i])}`, `all: ${format(top[i])}`,
      ...o.parts.map(p => `${p.name}: ${format(p.y[i])}`).reverse()].join("\n"),
  });
}
function binaryTicks(most) {
  let step = 1;
  while (most / step > 4.5) step *= 2;
  const out = [];
  for (let v = 0; v < most + step * .999; v += step) out.push(v);
  return out;
}

// Rows of words above their bars: fits any width. rows: [{name, value: text, bars: [{from, to, fill}], strong, band, link}];
// o: label, domain, format, values
function barRows(host, width, o) {
  const m = {l: 2, r: 10, t: 2, b: 22}, tops = [];
  let height = m.t;
  for (const r of o.rows) tops.push(height), height += 18 + (r.bars.length > 1 ? 8 * r.bars.length : 10) + 5;
  height += m.b;
  const x = d3.scaleLinear().domain(o.domain).range([m.l, width - m.r]);
  const svg = svgIn(host, width, height, o.label), paint = painter(svg);
  axes(svg, {x, m, width, height, xFormat: o.format, xValues: o.values, xTicks: Math.max(2, Math.floor(width / 110))});
  if (x.domain()[0] < 0) svg.append("line").attr("class", "rule").attr("x1", x(0)).attr("x2", x(0)).attr("y1", m.t).attr("y2", height - m.b);
  o.rows.forEach((r, i) => {
    if (r.link != null && i + 1 < o.rows.length) svg.append("line").attr("class", "rule").attr("x1", x(r.link)).attr("x2", x(r.link)).attr("y1", tops[i] + 18).attr("y2", tops[i + 1] + 18);
  });
  o.rows.forEach((r, i) => {
    const top = tops[i], g = svg.append("g"), thick = r.bars.length > 1 ? 7 : 9;
    const behind = g.append("rect").attr("style", "fill:var(--card)"), value = g.append("text").attr("x", width - m.r).attr("y", top + 12).attr("text-anchor", "end").attr("font-weight", 600).text(r.value);
    const long = value.node().getComputedTextLength();
    behind.attr("x", width - m.r - long - 3).attr("y", top + 1).attr("width", long + 4).attr("height", 14);
    const name = g.append("text").attr("class", "halo").attr("x", m.l).attr("y", top + 12).attr("font-weight", r.strong ? 600 : 400).text(r.name);
    shorten(name, width - m.r - m.l - long - 10);
    if (r.band) g.append("rect").attr("class", "band").attr("x", x(r.band[0])).attr("width", Math.max(1, x(r.band[1]) - x(r.band[0]))).attr("y", top + 15).attr("height", 14).attr("style", "fill:var(--line)");
    r.bars.forEach((bar, k) => {
      if (!known(bar.from) || !known(bar.to)) return;
      const a = x(Math.min(bar.from, bar.to)), b = x(Math.max(bar.from, bar.to));
      g.append("rect").attr("class", "mark").attr("x", a).attr("width", Math.max(1.5, b - a)).attr("y", top + 17.5 + 8 * k).attr("height", thick).attr("rx", 1.5).attr("style", paint(bar.fill));
    });
    g.append("title").text(`${r.name}: ${r.value}`);
  });
}
const upTo = (most, format) => format === bytes ? binaryTicks(most).filter(v => v <= most) : null;
function shorten(text, room) {
  let words = text.text();
  if (text.node().getComputedTextLength() <= room) return;
  const per = text.node().getComputedTextLength() / words.length;
  words = words.slice(0, Math.max(3, Math.floor(room / per)));
  do { words = words.slice(0, -1); text.text(words.trimEnd() + "\u2026"); } while (words.length > 3 && text.node().getComputedTextLength() > room);
}

// From the forecast, term by term, to what was measured. o: label, forecast, measured, terms, format, bound, low, high
function waterfall(host, width, o) {
  const format = o.format, rows = [], range = known(o.low) && known(o.high);
  const row = (name, value, from, to, fill, more) => rows.push({name, value, bars: [{from, to, fill}], link: to, ...more});
  if (known(o.bound)) row("bound: peak rates, nothing waits", format(o.bound), 0, o.bound, ["--grey", ""], {link: null});
  if (known(o.forecast)) row("forecast", format(o.forecast), 0, o.forecast, ["--blue", ""], {strong: true});
  let at = known(o.forecast) ? o.forecast : 0;
  for (const t of list(o.terms)) {
    if (!known(t.value) || t.value === 0) continue;  // the table has them all
    row(t.name, signed(format, t.value), at, at + t.value, t.value > 0 ? ["--red", "up"] : ["--green", "down"]);
    at += t.value;
  }
  if (known(o.measured)) row("measured", format(o.measured) + (known(o.forecast) && o.forecast > 0 ? ` (${signed(percent, o.measured / o.forecast - 1)})` : ""), 0, o.measured, ["--ink", ""], {strong: true, band: range ? [o.low, o.high] : null});
  const ends = rows.flatMap(r => [r.bars[0].from, r.bars[0].to, ...(r.band || [])]), most = Math.max(1e-12, ...ends);
  barRows(host, width, {rows, label: o.label, format, domain: [Math.min(0, ...ends), most], values: upTo(most, format)});
}

// One bar that adds up to the whole. parts: [{name, share, fill}]
function shareBar(host, width, o) {
  const height = o.height || 30, svg = svgIn(host, width, height, o.label), paint = painter(svg);
  let at = 0;
  const whole = Math.max(1e-12, o.parts.reduce((a, p) => a + (known(p.share) ? p.share : 0), 0));
  for (const p of o.parts) {
    if (!known(p.share) || p.share <= 0) continue;
    const w = p.share / Math.max(1, whole) * width;
    const g = svg.append("g");
    g.append("rect").attr("class", "mark").attr("x", at).attr("width", w).attr("height", height).attr("style", paint(p.fill) + ";stroke:var(--card);stroke-width:1");
    g.append("title").text(`${p.name}: ${percent(p.share)}`);
    at += w;
  }
}

// Utilisation of each rank over the traced time: what its work was, and the cause of each gap. o: the report's comb.
function comb(host, width, o) {
  const rows = o.rows, n = o.bins, most = rows.length;
  const each = most <= 8 ? 40 : most <= 24 ? 26 : most <= 64 ? 14 : 7, gap = each > 20 ? 5 : 2;
  const m = {t: 4, r: 50, b: 34, l: Math.min(110, Math.max(...rows.map(r => r.name.length)) * 6.2 + 8)};
  const height = m.t + each * most + m.b;
  const x = d3.scaleLinear().domain([0, o.span_s]).range([m.l, width - m.r]);
  const svg = svgIn(host, width, height, "Utilisation of each rank over time"), paint = painter(svg), at = i => x(o.span_s * i / n);
  axes(svg, {x, m, width, height, xFormat: seconds, xLabel: "time in the traced steps"});
  const bottom = r => m.t + each * (r + 1) - gap, tall = each - gap, shown = tall >= 10;
  const order = [...o.causes.keys()].sort((a, b) => o.work.includes(o.causes[b]) - o.work.includes(o.causes[a]));
  rows.forEach((row, r) => {
    const base = new Float64Array(n), bins = Math.min(n, list(row.shares).length);
    for (const c of order) {
      let d = "", any = false;
      for (let b = 0; b < bins; b++) {
        const v = row.shares[b][c] || 0;
        if (v <= 0) continue;
        any = true;
        let e = b + 1;  // equal neighbours are one rectangle
        while (e < bins && row.shares[e][c] === v && base[e] === base[b]) e++;
        const y0 = bottom(r) - base[b] * tall, y1 = bottom(r) - Math.min(1, base[b] + v) * tall;
        d += `M${at(b).toFixed(2)},${y0.toFixed(2)}V${y1.toFixed(2)}H${at(e).toFixed(2)}V${y0.toFixed(2)}Z`;
        for (; b < e; b++) base[b] += v;
        b--;
      }
      if (any) svg.append("path").attr("class", "series").attr("data-cause", o.causes[c]).attr("data-row", r).attr("d", d).attr("style", paint(fillOf(o.causes[c], o.work.includes(o.causes[c]))));
    }
    svg.append("rect").attr("class", "bins").attr("data-marks", bins).attr("x", m.l).attr("width", width - m.l - m.r).attr("y", bottom(r) - tall).attr("height", tall).attr("fill", "none").attr("style", "stroke:var(--line);stroke-width:.5");
    if (!shown && r % Math.ceil(12 / each)) return;
    svg.append("text").attr("x", m.l - 6).attr("y", bottom(r) - tall / 2 + 4).attr("text-anchor", "end").text(row.name);
    if (known(row.utilisation)) svg.append("text").attr("class", "soft").attr("x", width - m.r + 6).attr("y", bottom(r) - tall / 2 + 4).text(percent(row.utilisation));
  });
  const cursor = svg.append("rect").attr("class", "pick").attr("opacity", 0), pick = svg.append("rect").attr("class", "pick picked").attr("opacity", 0);
  const gapAt = (i, r) => list(rows[r].gaps).find(g => g.begin_s < o.span_s * (i + 1) / n && g.end_s > o.span_s * i / n);
  reader(svg, {
    label: `Utilisation over time, ${most} ranks, ${n} bins of ${seconds(o.span_s / n)}`, n, rows: most,
    x: i => at(i + .5), y: r => bottom(r),
    find: (px, py) => px < m.l || px > width - m.r || py > bottom(most - 1) + gap ? null :
      [Math.max(0, Math.min(n - 1, Math.floor((px - m.l) / (width - m.l - m.r) * n))), Math.max(0, Math.min(most - 1, Math.floor((py - m.t) / each)))],
    mark: (i, r) => cursor.attr("opacity", i < 0 ? 0 : 1).attr("x", at(i) - 1).attr("width", at(1) - at(0) + 2).attr("y", bottom(r) - tall - 1).attr("height", tall + 2),
    text: (i, r) => {
      const s = list(rows[r].shares)[i] || [], g = gapAt(i, r);
      const parts = o.causes.map((c, k) => [c, s[k] || 0]).filter(p => p[1] > 0.0005).sort((a, b) => b[1] - a[1]);
      return [`${rows[r].name}, ${seconds(o.span_s * i / n)} to ${seconds(o.span_s * (i + 1) / n)}`, ...parts.map(p => `${p[0]}: ${percent(p[1])}`),
        g ? `gap of ${seconds(g.end_s - g.begin_s)}: ${g.what}` : null].filter(Boolean).join("\n");
    },
  });
  return (r, g) => pick.attr("opacity", 1).attr("x", x(g.begin_s) - 1).attr("width", Math.max(2, x(g.end_s) - x(g.begin_s)) + 2).attr("y", bottom(r) - tall - 1.5).attr("height", tall + 3);
}

// Ops between the rooflines of memory and compute. o: the report's roofline.
function roofline(host, width, o) {
  const height = Math.max(260, Math.min(400, width * .6)), ops = o.ops.filter(p => p.intensity > 0 && p.flops_per_s > 0);
  const ridge = o.peak_flops / o.bandwidth;
  const xs = [...ops.map(p => p.intensity), ridge], ys = ops.map(p => p.flops_per_s);
  const x = d3.scaleLog().domain([Math.min(...xs) / 2, Math.max(...xs) * 4]);
  const y = d3.scaleLog().domain([Math.min(o.peak_flops / 50, ...ys) / 1.6, o.peak_flops * 2.2]);
  const powers = s => { const out = []; for (let e = Math.ceil(Math.log10(s.domain()[0])); e <= Math.floor(Math.log10(s.domain()[1]) + 1e-9); e++) out.push(Math.pow(10, e)); return out; };
  const yf = v => si(v, "F/s"), yv = powers(y), m = {t: 8, r: 12, b: 36, l: widest(yv, yf)};
  x.range([m.l, width - m.r]);
  y.range([height - m.b, m.t]);
  const svg = svgIn(host, width, height, "Roofline: rate of each op by its arithmetic intensity");
  const xv = powers(x), skip = Math.ceil(xv.length / Math.max(2, Math.floor((width - m.l) / 52)));
  axes(svg, {x, y, m, width, height, xFormat: v => digits(v), yFormat: yf, xValues: xv.filter((_, i) => i % skip === 0), yValues: yv, xLabel: "FLOP per byte"});
  const left = x.domain()[0], right = x.domain()[1], floor = Math.max(left, y.domain()[0] / o.bandwidth);
  svg.append("path").attr("class", "roof").attr("d", `M${x(floor)},${y(floor * o.bandwidth)}L${x(ridge)},${y(o.peak_flops)}H${x(right)}`).attr("style", "fill:none;stroke:var(--ink);stroke-width:1.8");
  svg.append("line").attr("class", "rule").attr("x1", x(ridge)).attr("x2", x(ridge)).attr("y1", y(o.peak_flops)).attr("y2", height - m.b);
  const taken = [];
  const put = (text, cx, cy, anchor, cls) => {
    const w = text.length * 6 + 4, left = anchor === "start" ? cx : anchor === "end" ? cx - w : cx - w / 2, box = [left, cy - 10, left + w, cy + 3];
    if (box[0] < m.l || box[2] > width - 2 || box[1] < 0 || box[3] > height - m.b + 2) return false;
    if (taken.some(t => t[0] < box[2] && t[2] > box[0] && t[1] < box[3] && t[3] > box[1])) return false;
    taken.push(box);
    svg.append("text").attr("class", "halo " + (cls || "")).attr("x", cx).attr("y", cy).attr("text-anchor", anchor).text(text);
    return true;
  };
  const radius = p => 3.5 + 9 * Math.sqrt(p.share || 0), byShare = [...ops].sort((a, b) => (b.share || 0) - (a.share || 0));
  for (const p of byShare) {
    const r = radius(p), cx = x(p.intensity), cy = y(p.flops_per_s);
    taken.push([cx - r, cy - r, cx + r, cy + r]);
  }
  put(`peak ${yf(o.peak_flops)}`, width - m.r, y(o.peak_flops) - 6, "end", "soft");
  put(`ridge ${digits(ridge)}`, x(ridge) + 5, height - m.b - 6, "start", "soft");
  put(`memory ${si(o.bandwidth, "B/s")}`, x(Math.sqrt(floor * ridge)) - 10, y(Math.sqrt(floor * ridge) * o.bandwidth) - 10, "end", "soft");
  const words = p => `${p.name}${p.layer ? ", " + p.layer : ""}`;
  const marks = svg.selectAll("path.mark").data(byShare).enter().append("path").attr("class", "mark")
    .attr("d", p => d3.symbol().type(p.bound === "compute" ? d3.symbolCircle : d3.symbolDiamond).size(Math.PI * radius(p) * radius(p))())
    .attr("transform", p => `translate(${x(p.intensity)},${y(p.flops_per_s)})`)
    .attr("style", p => `fill:var(${p.bound === "compute" ? "--blue" : "--orange"});stroke:var(--card);stroke-width:1.2;fill-opacity:.85`);
  byShare.slice(0, 16).forEach((p, i) => {
    const r = radius(p) + 3, cx = x(p.intensity), cy = y(p.flops_per_s), text = width < 500 || !p.layer ? p.name : words(p);
    if (put(text, cx + r, cy + 4, "start") || put(text, cx - r, cy + 4, "end") || put(text, cx, cy - r, "middle") || put(text, cx, cy + r + 9, "middle")) return;
    const away = [24, 38, 52, 66].find(d => put(text, cx, cy + r + d, "middle"));  // farther below, with a line to its mark
    if (away) svg.insert("line", "g").attr("class", "rule").attr("x1", cx).attr("x2", cx).attr("y1", cy + r - 2).attr("y2", cy + r + away - 11);
  });
  reader(svg, {
    label: `Roofline, ${ops.length} ops`, n: byShare.length, x: i => x(byShare[i].intensity), y: () => 20,
    find: (px, py) => {
      let best = null, least = 24;
      byShare.forEach((p, i) => { const d = Math.hypot(x(p.intensity) - px, y(p.flops_per_s) - py); if (d < least) least = d, best = [i, 0]; });
      return best;
    },
    mark: i => marks.style("stroke", (p, k) => k === i ? "var(--ink)" : "var(--card)"),
    text: i => {
      const p = byShare[i], roof = Math.min(o.peak_flops, o.bandwidth * p.intensity);
      return [words(p), `${percent(p.share)} of op time, ${seconds(p.seconds)}`, `${yf(p.flops_per_s)} at ${digits(p.intensity)} FLOP per byte`, `${percent(p.flops_per_s / roof)} of its roofline, ${p.bound} bound`].join("\n");
    },
  });
}

// Speed-up by devices, both on a logarithmic axis. runs: [{name, devices, speedup, ideal}]
function scalingChart(host, width, runs) {
  const height = 240, rows = [...runs].filter(r => r.devices > 0 && r.speedup > 0).sort((a, b) => a.devices - b.devices);
  const devices = rows.map(r => r.devices), all = rows.flatMap(r => [r.speedup, r.ideal]).filter(known);
  const m = {t: 12, r: 16, b: 34, l: 42}, x = d3.scaleLog().base(2).domain(rangeOf([devices])).range([m.l, width - m.r]);
  const y = d3.scaleLog().base(2).domain(rangeOf([all])).nice().range([height - m.b, m.t]);
  const svg = svgIn(host, width, height, "Speed-up by number of devices");
  axes(svg, {x, y, m, width, height, xValues: [...new Set(devices)], xFormat: v => digits(v), yFormat: v => digits(v) + "x", xLabel: "devices"});
  const line = key => d3.line().defined(r => known(r[key]) && r[key] > 0).x(r => x(r.devices)).y(r => y(r[key]))(rows);
  svg.append("path").attr("d", line("ideal")).attr("style", "fill:none;stroke:var(--soft);stroke-width:1.5;stroke-dasharray:4 4");
  svg.append("path").attr("class", "series").attr("data-marks", rows.length).attr("d", line("speedup")).attr("style", "fill:none;stroke:var(--blue);stroke-width:2");
  svg.selectAll("circle").data(rows).enter().append("circle").attr("class", "mark").attr("cx", r => x(r.devices)).attr("cy", r => y(r.speedup)).attr("r", 4).attr("style", "fill:var(--blue)");
  reader(svg, {
    label: "Speed-up by number of devices", n: rows.length, x: i => x(rows[i].devices), y: i => 20,
    find: px => [rows.reduce((b, r, i) => Math.abs(x(r.devices) - px) < Math.abs(x(rows[b].devices) - px) ? i : b, 0), 0],
    mark: i => svg.selectAll("circle").attr("r", (r, k) => k === i ? 6 : 4),
    text: i => [rows[i].name, `${plain(rows[i].devices)} devices, ${si(rows[i].tokens_per_s)} tokens/s`, `speed-up ${digits(rows[i].speedup)}, ideal ${digits(rows[i].ideal)}`, `efficiency ${percent(rows[i].efficiency)}`].join("\n"),
  });
}
