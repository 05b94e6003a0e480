// The sections of a run's report and of a comparison. Each: {id, title, of: the part of the report it shows, make(part, report)}.

function overview(report) {
  const out = [h("dl", {class: "tiles"}, list(report.headline).map(t => h("div", {class: "tile"}, h("dt", {text: t.label}), h("dd", {class: "v", text: plain(t.value)}), t.note ? h("dd", {class: "n", text: t.note}) : null)))];
  const advice = list(report.advice);
  if (advice.length) {
    out.push(adviceCard(advice[0], "What to change first"));
    if (advice.length > 1) {
      const more = h("details", {class: "more"}, h("summary", {text: `${advice.length - 1} more, by what they promise`}), advice.slice(1).map(a => adviceCard(a)));
      more.addEventListener("toggle", () => kept.set("more advice", more.open));
      more.open = kept.get("more advice") || false;
      out.push(more);
    }
  } else if (report.kind !== "comparison") {
    const n = list(report.checked).length;
    out.push(card(h("h3", {text: "Nothing to change"}), h("p", {class: "sub", text: n ? `${n} diagnoses were tried, and none applies (see Diagnoses).` : report.advice_why_not || "No diagnosis could be tried yet."})));
  }
  for (const t of list(report.text)) out.push(h("p", {text: t}));
  return out;
}
function adviceCard(a, over) {
  return h("article", {class: "card advice", "data-advice": a.id}, over ? h("p", {class: "sub", text: over}) : null,
    h("div", {class: "top"}, h("h3", {text: a.title}), h("span", {class: "num", text: plain(a.number)}), a.sure ? h("span", {class: "sure", text: a.sure}) : null),
    some(a.evidence) ? h("ul", {}, a.evidence.map(e => h("li", {text: e}))) : null,
    a.key ? h("p", {class: "sub"}, "Set ", h("code", {text: a.key}), a.from != null ? h("span", {}, " from ", h("code", {text: plain(a.from)})) : null, a.to != null ? h("span", {}, " to ", h("code", {text: plain(a.to)})) : null,
      known(a.gain_s) ? `: ${seconds(a.gain_s)} less per step` : "")
      : a.to ? h("p", {class: "sub", text: `Look at ${a.to}` + (known(a.gain_s) ? `: up to ${seconds(a.gain_s)} less per step` : "")}) : null,
    a.command ? h("div", {class: "cmd"}, h("code", {text: a.command}), copyButton("Copy", a.command)) : null);
}

const tollWords = {
  "state shelf": "state memory: weights, gradients, optimizer state", "scratchpad": "activation memory", "cable": "communication",
  "bubble": "pipeline idle time", "last inch": "traffic between memory and compute units",
};
function tolls(report) {
  const out = [], grid = h("div", {class: "grid"}), s = report.step_time;
  const one = (id, title, sub, t, format) => figure({
    id, title, sub, draw: (host, w) => waterfall(host, w, {...t, format, label: `${title}: forecast, terms of the difference, measured`}),
    columns: [{name: "term"}, {name: "value", n: true}],
    rows: [["forecast", known(t.forecast) ? format(t.forecast) : "-"], ...list(t.terms).map(x => [x.name, signed(format, x.value)]), ["measured", known(t.measured) ? format(t.measured) : "-"]],
  });
  const has = t => t && (known(t.forecast) || known(t.measured)), nothing = t => !t.forecast && !t.measured && !list(t.terms).some(x => x.value);
  if (has(s)) grid.append(one("step_time", "Step time", [known(s.low) && known(s.high) ? `8 of 10 steps take ${seconds(s.low)} to ${seconds(s.high)}` : null, s.note].filter(Boolean).join(". "), s, seconds));
  for (const t of list(report.tolls)) {
    const sub = [tollWords[t.toll], t.note].filter(Boolean).join(". ");
    if (has(t) && nothing(t)) grid.append(card(h("h3", {text: capital(t.toll)}), h("p", {class: "sub", text: sub}), why("None: " + (known(t.forecast) ? known(t.measured) ? "forecast and measured are 0." : "the forecast is 0." : "0 was measured."))));
    else if (has(t)) grid.append(one("toll-" + t.toll.replace(/\W+/g, "-"), capital(t.toll), sub, t, inUnit(t.unit)));
    else grid.append(card(h("h3", {text: capital(t.toll)}), h("p", {class: "sub", text: tollWords[t.toll] || ""}), why(t.why_not || t.note || "Neither forecast nor measured for this run.")));
  }
  out.push(grid.children.length ? grid : why(report.tolls_why_not || "The run has no forecast to compare with."));
  return out;
}
const capital = s => String(s).charAt(0).toUpperCase() + String(s).slice(1);

function combSection(c) {
  if (!c || !some(c.rows)) return [why((c && c.why_not) || "No step was traced. Train with --trace-steps 10-12.")];
  let marker = null;
  const gaps = c.rows.flatMap((row, r) => list(row.gaps).map(g => ({...g, r, rank: row.name, s: g.end_s - g.begin_s}))).sort((a, b) => b.s - a.s);
  const isWork = k => list(c.work).includes(k), causes = c.causes.filter(k => (c.totals || {})[k] > 0 || c.rows.some(r => (r.totals || {})[k] > 0));
  const parts = [...causes].sort((a, b) => isWork(b) - isWork(a)).map(k => ({name: k, share: (c.totals || {})[k] || 0, fill: fillOf(k, isWork(k))}));
  const sum = known(c.sum) ? c.sum : parts.reduce((a, p) => a + p.share, 0), steps = list(c.steps);
  const combFigure = figure({
    id: "comb", wide: true, title: "Utilisation of each rank over time",
    sub: `steps ${steps.join(", ")}: ${seconds(c.span_s)} in ${c.bins} bins. Plain colours are work, patterns are gaps, by cause. At the right: utilisation.`,
    legend: legend(parts.map(p => ({name: p.name, fill: p.fill}))),
    draw: (host, w) => { marker = comb(host, w, {...c, work: list(c.work)}); },
    columns: [{name: "rank"}, {name: "utilisation", n: true}, ...causes.map(k => ({name: k, n: true}))],
    rows: c.rows.map(r => [r.name, percent(r.utilisation), ...causes.map(k => percent((r.totals || {})[k] || 0))]),
  });
  const totals = figure({
    id: "comb-totals", title: "All ranks together", sub: `causes add up to ${percent(sum)}`, draw: (host, w) => shareBar(host, w, {parts, label: "Share of each cause over all ranks"}),
    below: legend(parts.map(p => ({name: p.name + (isWork(p.name) ? "" : " (gap)"), fill: p.fill, value: percent(p.share)}))),
    columns: [{name: "cause", tight: true}, {name: "is"}, {name: "share", n: true}, {name: "time of, or wait for", long: true}], rows: parts.map(p => [p.name, isWork(p.name) ? "work" : "gap", percent(p.share), causeWords[p.name] || ""]),
  });
  const shown = gaps.slice(0, 20);
  const longest = h("div", {class: "card span2 short", "data-chart": "gaps"}, h("h3", {text: "Longest gaps"}), h("p", {class: "sub", text: shown.length ? `${shown.length} of ${gaps.length}; Show marks the gap above` : "no gap was recorded"}),
    shown.length ? tableOf([{name: ""}, {name: "length", n: true}, {name: "rank", tight: true}, {name: "at", n: true}, {name: "cause", tight: true}, {name: "what", long: true}],
      shown.map(g => [h("button", {type: "button", text: "Show", onclick: () => { if (marker) marker(g.r, g); combFigure.scrollIntoView({block: "nearest"}); }}),
        seconds(g.s), g.rank, seconds(g.begin_s), g.cause, g.what + (g.microbatch != null ? `, microbatch ${g.microbatch}` : "")])) : null);
  return [h("div", {class: "grid"}, combFigure, totals, longest)];
}

function memory(m) {
  if (!m) return [why("The run recorded no memory.")];
  const buckets = list(m.buckets), grid = h("div", {class: "grid"}), over = list(m.over_time).filter(r => some(r.t_s));
  const fill = b => fillOf(b, true);
  if (over.length) {
    const pick = kept.get("memory rank") || 0, most = Math.max(...over.map(r => r.t_s.reduce((a, _, i) => Math.max(a, buckets.reduce((s, b) => s + (((r.bytes || {})[b] || [])[i] || 0), 0)), 0)));
    let now = Math.min(pick, over.length - 1);
    const near = known(m.capacity) && m.capacity < 4 * most;
    const used = buckets.filter(b => over.some(r => list((r.bytes || {})[b]).some(v => v > 0)));
    const select = over.length > 1 ? h("select", {"aria-label": "Rank"}, over.map((r, i) => h("option", {value: i, text: "rank " + r.rank}))) : null;
    const f = figure({
      id: "memory", span2: true, title: "Memory over time, by bucket", tool: select,
      sub: `highest point ${bytes(most)}` + (known(m.capacity) ? near ? "" : `; the capacity of ${bytes(m.capacity)} is above the chart (${percent(most / m.capacity)} used)` : "; capacity unknown"),
      legend: legend(used.map(b => ({name: b, fill: fill(b)}))),
      draw: (host, w) => stackChart(host, w, {
        label: `Memory of rank ${over[now].rank} over time`, x: over[now].t_s, xLabel: "time in the traced steps", xFormat: seconds, steps: true, format: bytes, binary: true, height: 300,
        parts: used.map(b => ({name: b, y: list((over[now].bytes || {})[b]), fill: fill(b)})), rules: near ? [{y: m.capacity, name: "capacity"}] : [],
      }),
      columns: [{name: "rank", n: true}, {name: "time", n: true}, ...used.map(b => ({name: b, n: true}))],
      rows: () => over.flatMap(r => r.t_s.map((t, i) => [r.rank, seconds(t), ...used.map(b => bytes(((r.bytes || {})[b] || [])[i]))])),
    });
    if (select) {
      select.value = now;
      select.addEventListener("change", () => { now = +select.value; kept.set("memory rank", now); f.redraw(); });
    }
    grid.append(f);
  } else grid.append(h("div", {class: "wide"}, why(m.why_not || "Memory over time needs a traced step: train with --trace-steps 10-12.")));
  const a = m.forecast_peak, b = m.measured_peak;
  if (a || b) {
    const names = buckets.filter(k => ((a || {})[k] || 0) > 0 || ((b || {})[k] || 0) > 0), total = o => o ? names.reduce((s, k) => s + (o[k] || 0), 0) : null;
    const rows = names.map(k => ({name: k, value: [a, b].filter(Boolean).map(o => bytes(o[k] || 0)).join(" / "), bars: [
      ...(a ? [{from: 0, to: a[k] || 0, fill: ["--grey", ""]}] : []), ...(b ? [{from: 0, to: b[k] || 0, fill: fill(k)}] : [])]}));
    const most = Math.max(1, ...rows.flatMap(r => r.bars.map(q => q.to)));
    grid.append(figure({
      id: "memory-peak", title: "Peak by bucket", sub: [a ? `forecast ${bytes(total(a))}` : null, b ? `measured ${bytes(total(b))}` : null, known(m.arena) ? `arena ${bytes(m.arena)}` : null, known(m.capacity) ? `capacity ${bytes(m.capacity)}` : null].filter(Boolean).join(", "),
      legend: a && b ? legend([{name: "forecast", fill: ["--grey", ""]}, {name: "measured, in the bucket's colour", fill: ["--blue", ""]}]) : null,
      draw: (host, w) => barRows(host, w, {rows, label: "Peak memory by bucket", format: bytes, domain: [0, most], values: upTo(most, bytes)}),
      columns: [{name: "bucket"}, {name: "forecast", n: true}, {name: "measured", n: true}], rows: names.map(k => [k, a ? bytes(a[k] || 0) : "-", b ? bytes(b[k] || 0) : "-"]),
    }));
  }
  return [grid];
}

// The mean of the n points around each; fewer at the ends.
function smooth(y, n) {
  const half = Math.floor(n / 2);
  return y.map((_, i) => {
    const near = y.slice(Math.max(0, i - half), i + half + 1).filter(known);
    return near.length ? near.reduce((a, v) => a + v, 0) / near.length : null;
  });
}
const wholePercent = v => digits(v * 100) + "\u00a0%";
function curves(c) {
  if (!c || !some(c.step)) return [why((c && c.why_not) || "The run has written no step yet.")];
  const grid = h("div", {class: "grid"}), x = c.step, has = y => list(y).some(known), n = x.length;
  const line = (id, title, sub, series, o = {}) => {
    const there = series.filter(s => has(s.y));
    if (!there.length && !some(o.points)) return;
    grid.append(figure({
      id, title, sub, legend: there.length + (o.points ? 1 : 0) > 1 ? legend([...there.map(s => ({name: s.name, fill: s.fill, kind: "line"})), ...(some(o.points) ? [{name: o.points[0].name, fill: o.points[0].fill, kind: "dot"}] : [])]) : null,
      draw: (host, w) => lineChart(host, w, {label: `${title} by step`, x, series: there, ...o}), span2: o.span2,
      columns: [{name: "step", n: true}, ...there.filter(s => !s.derived).map(s => ({name: s.name, n: true})), ...(some(o.points) ? [{name: o.points[0].name, n: true}] : [])],
      rows: () => {
        const at = new Map(list(o.points).map(p => [p.x, p.y])), steps = [...new Set([...x, ...at.keys()])].sort((p, q) => p - q), index = new Map(x.map((v, i) => [v, i]));
        return steps.map(s => [digits(s, 9), ...there.filter(q => !q.derived).map(q => { const v = index.has(s) ? q.y[index.get(s)] : null; return known(v) ? (q.format || o.format || (w => digits(w, 5)))(v) : ""; }),
          ...(some(o.points) ? [at.has(s) ? digits(at.get(s), 5) : ""] : [])]);
      },
    }));
  };
  const evals = list(c.eval).filter(p => known(p[0]) && known(p[1])).map(p => ({x: p[0], y: p[1], name: "held-out loss", fill: ["--red"]}));
  const w = Math.max(2, Math.round(n / 40)), four = v => digits(v, 4);
  line("loss", "Loss", c.thinned ? `nats per token; ${c.thinned}` : "nats per token", n > 60 ? [{name: "training loss", y: c.loss, fill: ["--sky"], thin: true, format: four}, {name: `mean of ${w} points`, y: smooth(c.loss || [], w), fill: ["--blue"], derived: true, format: four}] : [{name: "training loss", y: c.loss, fill: ["--blue"], format: four}], {points: evals, height: 250, span2: true});
  line("tokens_per_s", "Throughput", "tokens per second", [{name: "tokens/s", y: c.tokens_per_s, fill: ["--blue"]}], {zero: true, format: v => si(v)});
  line("mfu", "MFU and HFU", "share of peak FLOP/s: of the model alone, and with recompute", [{name: "MFU", y: c.mfu, fill: ["--blue"]}, {name: "HFU", y: c.hfu, fill: ["--orange"], dash: "5 3"}], {zero: true, format: percent, tick: wholePercent});
  const t = c.time || {}, parts = [...new Set(["forward", "backward", "update", "norm", "other", ...Object.keys(t)])].filter(k => has(t[k]));
  if (parts.length) grid.append(figure({
    id: "time", title: "Step time by part", sub: "seconds of each step", legend: legend(parts.map(k => ({name: k, fill: fillOf(k, k !== "other")}))),
    draw: (host, w) => stackChart(host, w, {label: "Step time by part", x, xLabel: "step", xFormat: v => si(v), format: seconds, parts: parts.map(k => ({name: k, y: t[k], fill: fillOf(k, k !== "other")}))}),
    columns: [{name: "step", n: true}, ...parts.map(k => ({name: k, n: true}))], rows: () => x.map((s, i) => [digits(s, 9), ...parts.map(k => seconds(t[k][i]))]),
  }));
  line("waits", "Waits within a step", "seconds that a step waits for data and for communication", [{name: "step", y: c.step_s, fill: ["--grey"], thin: true}, {name: "data", y: c.data_s, fill: ["--orange"]}, {name: "communication", y: c.comm_s, fill: ["--red"], dash: "5 3"}], {zero: true, format: seconds});
  line("grad_norm", "Gradient norm", "before clipping", [{name: "gradient norm", y: c.grad_norm, fill: ["--green"]}], {zero: true});
  line("lr", "Learning rate", "", [{name: "learning rate", y: c.lr, fill: ["--violet"]}], {zero: true, format: v => v === 0 ? "0" : v.toExponential(1)});
  return [grid];
}

function rooflineSection(r) {
  if (!r) return [why("No op was traced. Train with --trace-steps 10-12.")];
  const grid = h("div", {class: "grid"}), t = r.traffic;
  if (some(r.ops) && known(r.peak_flops) && known(r.bandwidth)) {
    const ops = [...r.ops].sort((a, b) => (b.share || 0) - (a.share || 0));
    grid.append(figure({
      id: "roofline", span2: true, title: "Roofline", sub: `${r.device || "device"}: ${si(r.peak_flops, "FLOP/s")}, memory ${si(r.bandwidth, "B/s")}` + (known(r.network) ? `, network ${si(r.network, "B/s")}` : "") + ". Larger marks take more time.",
      legend: legend([{name: "compute bound", fill: ["--blue"], kind: "circle"}, {name: "memory bound", fill: ["--orange"], kind: "diamond"}]),
      draw: (host, w) => roofline(host, w, r),
      columns: [{name: "op"}, {name: "layer"}, {name: "share", n: true}, {name: "time", n: true}, {name: "FLOP", n: true}, {name: "traffic", n: true}, {name: "FLOP/byte", n: true}, {name: "rate", n: true}, {name: "bound"}],
      rows: ops.map(p => [p.name, p.layer, percent(p.share), seconds(p.seconds), si(p.flops), bytes(p.bytes), digits(p.intensity), si(p.flops_per_s, "FLOP/s"), p.bound]),
    }));
  } else grid.append(h("div", {class: "wide"}, why(r.why_not || "No op was traced. Train with --trace-steps 10-12.")));
  if (t && known(t.least_bytes)) {
    const most = Math.max(t.measured_or_counted_bytes || 0, t.least_bytes, 1);
    grid.append(figure({
      id: "traffic", title: "Memory traffic", sub: [t.what, known(t.ratio) ? `${digits(t.ratio)} times the least possible` : null].filter(Boolean).join(". "),
      draw: (host, w) => barRows(host, w, {label: "Memory traffic", format: bytes, domain: [0, most], values: upTo(most, bytes), rows: [
        {name: "moved", value: bytes(t.measured_or_counted_bytes), bars: [{from: 0, to: t.measured_or_counted_bytes, fill: ["--blue", ""]}]}, {name: "least possible", value: bytes(t.least_bytes), bars: [{from: 0, to: t.least_bytes, fill: ["--green", "down"]}]}]}),
      columns: [{name: "traffic"}, {name: "bytes", n: true}], rows: [["moved", bytes(t.measured_or_counted_bytes)], ["least possible", bytes(t.least_bytes)]],
    }));
  }
  return [grid];
}

function goodput(g) {
  if (!g || !known(g.share)) return why((g && g.why_not) || "Goodput needs the times of at least one launch.");
  const colours = ["--orange", "--red", "--pink", "--yellow", "--sky", "--grey", "--violet", "--green"], marks = ["up", "down", "cross", "dots"];
  const parts = [{name: "useful", share: g.share, s: g.useful_s, fill: ["--blue", ""]},
    ...list(g.lost).filter(l => l.s > 0 || l.share > 0).map((l, i) => ({name: l.cause, share: l.share, s: l.s, fill: [colours[i % 8], marks[i % 4]]}))];
  return figure({
    id: "goodput", wide: true, title: `Goodput ${percent(g.share)}`,
    sub: `${seconds(g.useful_s)} of ${seconds(g.wall_s)} since the first start made steps that count; shares add up to ${percent(parts.reduce((a, p) => a + (p.share || 0), 0))}`,
    draw: (host, w) => shareBar(host, w, {parts, label: "Goodput and what the rest was lost to"}), below: legend(parts.map(p => ({name: p.name, fill: p.fill, value: `${percent(p.share)}, ${seconds(p.s)}`}))),
    columns: [{name: "part"}, {name: "time", n: true}, {name: "share", n: true}], rows: parts.map(p => [p.name, seconds(p.s), percent(p.share)]),
  });
}
function checkpoints(c) {
  if (!c || !some(c.saves)) return why((c && c.why_not) || "The run has saved no checkpoint.");
  const saves = c.saves, most = Math.max(1e-9, ...saves.flatMap(s => [s.stall_s || 0, s.write_s || 0])), last = saves.slice(-8);
  const words = [known(c.stall_share) ? `stalls are ${percent(c.stall_share)} of steps and stalls` : null, c.cadence ? `cadence: ${plain(c.cadence)}` : null, c.best_cadence ? `best: ${plain(c.best_cadence)}` : null].filter(Boolean).join("; ");
  const rows = last.map(s => ({name: `step ${plain(s.step)}`, value: [s.stall_s, s.write_s].filter(known).map(seconds).join(" / "), bars: [
    {from: 0, to: s.stall_s, fill: ["--red", "up"]}, ...(known(s.write_s) ? [{from: 0, to: s.write_s, fill: ["--sky", ""]}] : [])]}));
  return figure({
    id: "checkpoints", title: "Checkpoints", sub: words + (last.length < saves.length ? `; the last ${last.length} of ${saves.length}` : ""),
    legend: legend([{name: "stall: training waits", fill: ["--red", "up"]}, {name: "write", fill: ["--sky", ""]}]),
    draw: (host, w) => barRows(host, w, {label: "Stall and write time of each save", rows, format: seconds, domain: [0, most]}),
    columns: [{name: "step", n: true}, {name: "stall", n: true}, {name: "write", n: true}], rows: saves.map(s => [plain(s.step), seconds(s.stall_s), seconds(s.write_s)]),
  });
}
const eventTable = events => h("div", {class: "card span2", "data-chart": "events"}, h("h3", {text: "Events"}),
  tableOf([{name: "time", tight: true}, {name: "step", n: true}, {name: "kind", tight: true}, {name: "what", long: true}], events.map(e => [e.time, e.step == null ? "" : digits(e.step, 9), e.kind, e.text])));

function record(report) {
  if (!some(report.record)) return [why("The run recorded nothing of the machine.")];
  return [h("div", {class: "card", "data-chart": "record"}, h("div", {class: "row"}, h("p", {class: "sub", text: "collected without hand input"}), report.record_markdown ? copyButton("Copy as Markdown", report.record_markdown) : null),
    tableOf([{name: "what"}, {name: "value"}, {name: "source"}], report.record.map(r => [r.key, plain(r.value), r.source])))];
}

function checked(rows) {
  if (!some(rows)) return [why("No diagnosis was tried.")];
  const order = [...rows].sort((a, b) => !!b.found - !!a.found);
  return [h("div", {class: "card", "data-chart": "checked"}, tableOf([{name: "diagnosis"}, {name: "result"}, {name: "number"}], order.map(r => [r.title || r.id, r.found ? "found" : r.found === false ? "not found" : "not known", r.number || r.why_not || ""]), i => order[i].found ? "hit" : "off"))];
}

const extraTables = tables => tables.map((t, i) => h("div", {class: "card", "data-chart": "table-" + i}, h("h3", {text: t.title}), tableOf(list(t.columns).map(c => ({name: c})), list(t.rows).map(r => r.map(plain)))));

const runSections = [
  {id: "overview", title: "Overview", of: r => [r.headline, r.advice, r.text, list(r.checked).length], make: (p, r) => overview(r)},
  {id: "time", title: "Five tolls", lead: "Where memory, time and traffic go. The named terms add up to measured minus forecast.", of: r => [r.tolls, r.step_time], make: (p, r) => tolls(r)},
  {id: "comb-section", nav: "Utilisation", title: "Utilisation over time", of: r => r.comb, make: combSection},
  {id: "memory-section", title: "Memory", of: r => r.memory, make: memory},
  {id: "curves", title: "Curves", of: r => r.curves, make: curves},
  {id: "roofline-section", title: "Roofline and traffic", nav: "Roofline", of: r => r.roofline, make: rooflineSection},
  {id: "goodput-section", title: "Goodput, checkpoints, events", nav: "Goodput", of: r => [r.goodput, r.checkpoints, r.events],
    make: ([g, c, e]) => [h("div", {class: "grid"}, goodput(g), checkpoints(c), some(e) ? eventTable(e) : null)]},
  {id: "record-section", title: "Systems record", nav: "Record", of: r => [r.record, r.record_markdown], make: (p, r) => record(r)},
  {id: "checked-section", title: "Diagnoses", of: r => r.checked, make: checked},
  {id: "notes", title: "Notes", lead: "What was missing or damaged in the run folder.", of: r => r.notes, when: r => some(r.notes), make: notes => [card(h("ul", {}, notes.map(n => h("li", {text: n}))))]},
  {id: "tables", title: "More tables", of: r => r.tables, when: r => some(r.tables), make: extraTables},
];
