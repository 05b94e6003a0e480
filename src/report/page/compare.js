// A comparison of runs, and the list of runs that --follow watches.

const runColours = [["--blue"], ["--red", "", "6 3"], ["--green", "", "2 3"], ["--orange", "", "8 3 2 3"], ["--pink", "", "4 2"], ["--sky"], ["--violet", "", "6 3"], ["--grey", "", "2 3"]];
const runFill = i => runColours[i % 8];

function comparedRuns(r) {
  const runs = list(r.runs), labels = [...new Set(runs.flatMap(x => list(x.headline).map(t => t.label)))];
  const out = list(r.text).length ? [h("div", {class: "card text"}, r.text.map(t => h("p", {text: t})))] : [];
  out.push(h("div", {class: "card", "data-chart": "runs"}, tableOf([{name: ""}, ...runs.map(x => ({name: plain(x.name)}))], labels.map(l => [l, ...runs.map(x => { const t = list(x.headline).find(t => t.label === l); return t ? plain(t.value) : "-"; })]))));
  return out;
}
function comparedTime(r) {
  const grid = h("div", {class: "grid"}), names = list(r.runs).map(x => plain(x.name));
  const ends = list(r.steps).filter(Boolean).flatMap(s => [s.forecast, s.measured]).filter(known);
  if (ends.length) {
    const rows = list(r.steps).flatMap((s, i) => !s ? [] : [{name: names[i], value: [s.forecast, s.measured].filter(known).map(seconds).join(" / "), bars: [
      {from: 0, to: s.forecast, fill: ["--grey", ""]}, {from: 0, to: s.measured, fill: [runFill(i)[0], ""]}]}]);
    grid.append(figure({id: "steps", title: "Step time", sub: "forecast (grey) and measured", draw: (host, w) => barRows(host, w, {label: "Step time of each run", rows, format: seconds, domain: [0, Math.max(...ends)]}),
      columns: [{name: "run"}, {name: "forecast", n: true}, {name: "measured", n: true}], rows: list(r.steps).map((s, i) => [names[i], s ? seconds(s.forecast) : "-", s ? seconds(s.measured) : "-"])}));
  }
  for (const t of list(r.tolls)) {
    const values = list(t.values);
    if (!values.some(known)) continue;
    const format = inUnit(t.unit || (t.toll === "bubble" ? "s" : "bytes")), change = values.length === 2 && values[0] > 0 && known(values[1]) ? values[1] / values[0] - 1 : null;
    grid.append(figure({id: "toll-" + t.toll.replace(/\W+/g, "-"), title: capital(t.toll), sub: [tollWords[t.toll], !known(change) ? null : Math.abs(change) < 5e-4 ? "unchanged" : (change < 0 ? "falls by " : "rises by ") + percent(Math.abs(change))].filter(Boolean).join("; "),
      draw: (host, w) => barRows(host, w, {label: `${t.toll} of each run`, format, domain: [0, Math.max(1e-12, ...values.filter(known))], values: upTo(Math.max(...values.filter(known)), format),
        rows: values.map((v, i) => ({name: names[i], value: known(v) ? format(v) : "-", bars: [{from: 0, to: v, fill: [runFill(i)[0], ""]}]}))}),
      columns: [{name: "run"}, {name: t.toll, n: true}], rows: values.map((v, i) => [names[i], known(v) ? format(v) : "-"])}));
  }
  return [grid.children.length ? grid : why("No run has a measured step.")];
}
function comparedCurves(r) {
  const runs = list(r.curves), names = list(r.runs).map(x => plain(x.name)), grid = h("div", {class: "grid"});
  const one = (id, title, key, o) => {
    const steps = [...new Set(runs.flatMap(c => list(c && c.step)))].sort((a, b) => a - b);
    const series = runs.map((c, i) => {
      const at = new Map(list(c && c.step).map((s, k) => [s, list(c[key])[k]]));
      return {name: names[i], fill: runFill(i), dash: runFill(i)[2], y: steps.map(s => at.has(s) ? at.get(s) : null)};
    }).filter(s => s.y.some(known));
    if (!series.length) return;
    for (const s of series) bridge(s.y, steps.length);
    grid.append(figure({id, title, sub: o.sub, legend: legend(series.map(s => ({name: s.name, fill: s.fill, kind: "line"}))), span2: o.span2, draw: (host, w) => lineChart(host, w, {label: title, x: steps, series, ...o}),
      columns: [{name: "step", n: true}, ...series.map(s => ({name: s.name, n: true}))], rows: () => steps.map((s, i) => [digits(s, 9), ...series.map(q => known(q.y[i]) ? digits(q.y[i], 5) : "")])}));
  };
  one("loss", "Loss", "loss", {sub: "nats per token", span2: true, height: 250});
  one("tokens_per_s", "Throughput", "tokens_per_s", {sub: "tokens per second", zero: true, format: v => si(v)});
  one("mfu", "MFU", "mfu", {sub: "share of peak FLOP/s", zero: true, format: percent, tick: wholePercent});
  return [grid.children.length ? grid : why("No run has written a step.")];
}
// Runs that were thinned at other steps: a hole inside a run takes the value before it, so that its line stays one.
function bridge(y) {
  let last = y.length - 1;
  while (last >= 0 && !known(y[last])) last--;
  for (let i = 1; i < last; i++) if (!known(y[i]) && known(y[i - 1])) y[i] = y[i - 1];
}
const scaling = s => [h("div", {class: "grid"}, figure({id: "scaling", wide: true, title: "Speed-up", sub: "measured (line) and ideal (dashes), on logarithmic axes",
  draw: (host, w) => scalingChart(host, w, s), columns: [{name: "run"}, {name: "devices", n: true}, {name: "tokens/s", n: true}, {name: "speed-up", n: true}, {name: "ideal", n: true}, {name: "efficiency", n: true}],
  rows: s.map(r => [r.name, plain(r.devices), si(r.tokens_per_s), digits(r.speedup), digits(r.ideal), percent(r.efficiency)])}))];
function differences(rows) {
  if (!some(rows)) return [why("Nothing that was recorded differs: run files, hardware, software.")];
  const order = [...rows].sort((a, b) => Math.abs(b.cost_s || 0) - Math.abs(a.cost_s || 0));
  return [h("div", {class: "card", "data-chart": "differences"}, tableOf([{name: "what"}, {name: "first"}, {name: "second"}, {name: "costs", n: true}, {name: "share", n: true}, {name: "note"}],
    order.map(d => [d.what, plain(d.a), plain(d.b), known(d.cost_s) ? signed(seconds, d.cost_s) : "", known(d.cost_share) ? percent(d.cost_share) : "", d.note || ""])))];
}
const comparisonSections = [
  {id: "overview", title: "Runs", of: r => [r.runs, r.text], make: (p, r) => comparedRuns(r)},
  {id: "time", title: "Step time and tolls", of: r => [r.steps, r.tolls], make: (p, r) => comparedTime(r)},
  {id: "scaling-section", title: "Scaling", of: r => r.scaling, when: r => some(r.scaling), make: scaling},
  {id: "differences-section", title: "Differences", lead: "What differs between the runs, and what each difference costs per step.", of: r => r.differences, make: differences},
  {id: "curves", title: "Curves", of: r => r.curves, make: (p, r) => comparedCurves(r)},
  {id: "tables", title: "More tables", of: r => r.tables, when: r => some(r.tables), make: extraTables},
];

function runList(rows) {
  if (!some(rows)) return [why("No run folder is here yet.")];
  return [h("div", {class: "card", "data-chart": "list"}, tableOf([{name: "run"}, {name: "state"}, {name: "step", n: true}, {name: "loss", n: true}, {name: "tokens/s", n: true}, {name: "updated"}],
    rows.map((r, i) => [h("a", {href: "#/run/" + i, title: r.folder, text: r.name || r.folder}), r.state || r.error || "-", r.step == null ? "-" : r.steps ? `${digits(r.step, 9)} of ${digits(r.steps, 9)}` : digits(r.step, 9), known(r.loss) ? digits(r.loss, 4) : "-", si(r.tokens_per_s), r.updated || "-"])))];
}
const listSections = [{id: "list", title: "Runs", of: r => r.runs, make: runList}];
