// Draws a report, and of a live page what has changed since. The page stands alone: only a live one asks, and only its server.

const shown = new Map();  // section -> its part of the report, as text
function drawReport(report) {
  const sections = report.kind === "comparison" ? comparisonSections : report.kind === "list" ? listSections : runSections;
  const main = byId("main"), there = sections.filter(s => !s.when || s.when(report));
  if (main.dataset.kind !== String(report.kind)) {
    main.dataset.kind = report.kind;
    shown.clear();
    main.replaceChildren();
  }
  if ([...main.children].map(e => e.id).join() !== there.map(s => s.id).join()) {  // one that comes or goes leaves the others
    for (const e of [...main.children]) if (!there.some(s => s.id === e.id)) { shown.delete(e.id); e.remove(); }
    there.forEach((s, i) => {
      if (byId(s.id)) return;
      main.insertBefore(h("section", {id: s.id, "aria-labelledby": s.id + "-h"}, h("h2", {id: s.id + "-h", text: s.title}), s.lead ? h("p", {class: "lead", text: s.lead}) : null, h("div", {class: "body"})), main.children[i] || null);
    });
    const go = id => e => {
      e.preventDefault();
      const head = byId(id + "-h");
      byId(id).scrollIntoView();
      head.tabIndex = -1;
      head.focus({preventScroll: true});
    };
    byId("nav").replaceChildren(...(live && live.many && report.kind !== "list" ? [h("a", {href: "#/", text: "All runs"})] : []), ...(there.length > 1 ? there.map(s => h("a", {href: "#" + s.id, text: s.nav || s.title, onclick: go(s.id)})) : []));
    follow(there);
  }
  const name = report.kind === "list" ? "Runs" : report.kind === "comparison" ? list(report.runs).map(r => r.name).join(" and ") : report.name || report.folder || "run";
  byId("name").textContent = name;
  document.title = name + " - trireme report";
  byId("folder").textContent = report.folder || "";
  byId("folder").title = report.folder || "";
  const state = byId("state");
  state.textContent = report.state || "";
  state.className = "state " + (["finished", "running", "failed", "stopped"].includes(report.state) ? report.state : "");
  for (const s of there) {
    const part = s.of(report), text = JSON.stringify(part) || "null";
    if (shown.get(s.id) === text) continue;
    shown.set(s.id, text);
    const body = byId(s.id).querySelector(".body"), held = body.contains(document.activeElement);
    try {
      body.replaceChildren(...s.make(part, report));
    } catch (e) {  // one section that fails leaves the others
      console.error(e);
      body.replaceChildren(why(`This section could not be drawn: ${e.message}`));
    }
    if (held) byId("main").focus({preventScroll: true});
  }
  drawAll();
}
let watching = null;
function follow(sections) {
  if (watching) watching.disconnect();
  watching = new IntersectionObserver(entries => {
    for (const e of entries) if (e.isIntersecting)
      byId("nav").querySelectorAll("a").forEach(a => a.classList.toggle("here", a.getAttribute("href") === "#" + e.target.id));
  }, {rootMargin: "-15% 0px -75% 0px"});
  for (const s of sections) watching.observe(byId(s.id));
}

// {live: base path of the server's JSON, many: a list of runs} in place of a report makes the page a live one.
const embedded = JSON.parse(byId("data").textContent);
const live = embedded && embedded.live != null ? embedded : null;
const still = r => Boolean(r.state) && r.state !== "running" && r.state !== "reading";
// A finished run changes no more. One that failed or stopped may be launched again, and a list may get other runs.
const finished = r => r.kind !== "list" && r.state === "finished";
const resting = r => r.kind === "list" ? some(r.runs) && r.runs.every(still) : still(r);
let timer = 0, slow = false, tag = "", run = 0, missed = 0, place = "";
function say(text, trouble) {
  const e = byId("live");
  if (e.textContent !== text) e.textContent = text;
  e.className = "live" + (trouble ? " trouble" : "");
}
async function poll() {
  clearTimeout(timer);
  byId("again").hidden = true;
  const path = place, mine = ++run, stop = new AbortController(), limit = setTimeout(() => stop.abort(), 10000);
  let wait = 2000;
  try {
    const reply = await fetch(path, {headers: tag ? {"If-None-Match": tag} : {}, cache: "no-store", signal: stop.signal});
    if (mine !== run) return;
    if (reply.status === 200) {
      const report = await reply.json();
      if (mine !== run) return;
      missed = 0;
      if (report.error) say(report.error + "; trying again", true);
      else {
        tag = reply.headers.get("ETag") || "";
        drawReport(report);
        if (finished(report)) { say(""); byId("again").hidden = false; return; }
        slow = resting(report);
        say(slow ? (report.kind === "list" ? "all ended" : "ended") + "; looks every 10 s" : "live, updated " + new Date().toLocaleTimeString());
      }
    } else if (reply.status === 202) wait = 250;  // being read for the first time
    else if (reply.status === 304) {  // what is drawn is current, also after trouble
      missed = 0;
      if (byId("live").className.includes("trouble")) say("live, updated " + new Date().toLocaleTimeString());
    }
    else say(`the server answered ${reply.status}; trying again`, true);
  } catch {
    if (mine !== run) return;
    missed++;
    say("trireme report --follow does not answer; trying again", true);
    wait = Math.min(30000, 2000 * missed);
  } finally {
    clearTimeout(limit);
  }
  if (document.hidden || slow) wait = Math.max(wait, 10000);
  timer = setTimeout(poll, wait);
}
function route() {
  const m = /^#\/run\/(\d+)$/.exec(location.hash), next = live.live + (live.many ? m ? `/run/${m[1]}.json` : "/runs.json" : "/run/0.json");
  if (next === place) return;
  place = next;
  tag = "";
  slow = false;
  shown.clear();
  kept.clear();
  byId("main").replaceChildren();
  byId("main").dataset.kind = "";
  byId("nav").replaceChildren();
  say("reading the run");
  poll();
}
themes();
if (live) {
  byId("again").addEventListener("click", poll);
  addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && byId("again").hidden) poll(); });
  route();
} else if (embedded) drawReport(embedded);
