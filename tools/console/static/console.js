"use strict";

// Keys, light and dark, pages that load themselves anew, the live tail. Without it all pages work,
// but for the live tail.

const byId = (id) => document.getElementById(id);

// Light and dark

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `skylarkmq-theme=${theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
}

byId("theme").addEventListener("click", switchTheme);

// On a small screen the menu is a strip: the page that is shown comes into sight.
const here = document.querySelector("nav a[aria-current]");
if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.clientWidth / 2;

// Keys

const keys = byId("keys");
const showKeys = () => (keys.open ? keys.close() : keys.showModal());
byId("help").addEventListener("click", showKeys);
keys.addEventListener("click", (event) => {
  if (event.target === keys) keys.close();
});

let before = "";
let beforeAt = 0;

function isTyping(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && target.type !== "checkbox";
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("table.rows tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step))];
  const link = next.querySelector("a");
  if (link) link.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const followsG = before === "g" && event.timeStamp - beforeAt < 1500;
  before = followsG ? "" : event.key;
  beforeAt = event.timeStamp;
  if (followsG) {
    const link = document.querySelector(`nav a[data-go="${CSS.escape(event.key)}"]`);
    if (link) link.click();
  } else if (event.key === "/") {
    event.preventDefault();
    byId("find").focus();
  } else if (event.key === "?") {
    showKeys();
  } else if (event.key === "d") {
    switchTheme();
  } else if (event.key === "j" || event.key === "k") {
    moveRow(event.key === "j" ? 1 : -1);
  }
});

// Pages that load themselves anew: the marked parts are exchanged

const main = byId("main");
const pause = Number(main.dataset.refresh || 0) * 1000;

function isInUse(part) {
  const selection = getSelection();
  return part.contains(document.activeElement) || (!selection.isCollapsed && part.contains(selection.anchorNode));
}

async function refresh() {
  if (document.hidden || keys.open) return;
  let answer;
  try {
    answer = await fetch(location.href, { headers: { "X-Refresh": "1" } });
  } catch {
    document.body.classList.add("stale");
    return;
  }
  document.body.classList.toggle("stale", !answer.ok);
  if (!answer.ok || answer.redirected) return;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = found.getElementById(part.id);
    if (!fresh || isInUse(part)) continue;
    const closed = [...part.querySelectorAll("details")].map((each) => each.open);
    [...fresh.querySelectorAll("details")].forEach((each, at) => {
      if (at < closed.length) each.open = closed[at];
    });
    part.replaceWith(document.adoptNode(fresh));
  }
  reachWide();
}

if (pause) setInterval(refresh, pause);

// Who has no mouse scrolls a wide table by keys.
function reachWide() {
  for (const part of document.querySelectorAll(".scroll")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}

addEventListener("resize", reachWide);
reachWide();

// Forms

for (const box of document.querySelectorAll("[data-all]")) {
  box.addEventListener("change", () => {
    for (const each of document.getElementsByName(box.dataset.all)) each.checked = box.checked;
  });
}

// A choice that shows the fields which belong to it, and no others.
for (const choice of document.querySelectorAll("select[data-shows]")) {
  const show = () => {
    for (const label of document.querySelectorAll("[data-by]")) {
      label.hidden = !label.dataset.by.split(" ").includes(choice.value);
    }
  };
  choice.addEventListener("change", show);
  show();
}

// Live tail

const ROWS_MAX = 500;
const tail = byId("tail");

function cell(row, text, kind) {
  const made = row.insertCell();
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function watch() {
  const rows = byId("tail-rows");
  const state = byId("tail-state");
  const held = [];
  let count = 0;
  let skipped = 0;
  let paused = false;

  const say = (text, kind) => {
    state.hidden = false;
    state.textContent = text;
    state.className = `badge ${kind}`;
  };
  const add = (message) => {
    // The queues are read side by side, so a message may come after younger ones of another queue.
    let at = 0;
    while (at < rows.rows.length && rows.rows[at].dataset.stored > message.stored) at += 1;
    const row = rows.insertRow(at);
    row.dataset.stored = message.stored;
    row.className = "fresh";
    const link = document.createElement("a");
    link.href = `/messages/view?id=${encodeURIComponent(message.id)}`;
    link.textContent = message.stored;
    cell(row, "", "nowrap").append(link);
    cell(row, message.queue, "nowrap");
    cell(row, message.offset.toLocaleString("en"), "num");
    cell(row, message.tags);
    cell(row, message.keys);
    cell(row, message.body, "preview mono");
    while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
  };

  const source = new EventSource(tail.dataset.source);
  source.addEventListener("open", () => say(paused ? "paused" : "live", paused ? "warn" : "good"));
  source.addEventListener("error", () => say("connecting", "warn"));
  source.addEventListener("message", (event) => {
    const message = JSON.parse(event.data);
    count += 1;
    byId("tail-count").textContent = count.toLocaleString("en");
    byId("tail-empty").hidden = true;
    if (paused) {
      held.push(message);
      if (held.length > ROWS_MAX) held.shift();
    } else add(message);
  });
  source.addEventListener("skipped", (event) => {
    skipped += JSON.parse(event.data).count;
    const text = byId("tail-skipped");
    text.hidden = false;
    text.textContent = `${skipped.toLocaleString("en")} more came too fast to be shown.`;
  });
  source.addEventListener("without", (event) => {
    const text = byId("tail-without");
    text.hidden = false;
    text.textContent = JSON.parse(event.data).brokers.map((each) => `Without ${each}`).join("; ");
  });
  source.addEventListener("failed", (event) => {
    const failure = JSON.parse(event.data);
    const text = byId("tail-error");
    text.hidden = false;
    text.textContent = `${failure.cause} ${failure.cure}`;
    say("ended", "bad");
    source.close();
  });
  byId("tail-pause").addEventListener("click", (event) => {
    paused = !paused;
    event.target.textContent = paused ? "Go on" : "Pause";
    say(paused ? "paused" : "live", paused ? "warn" : "good");
    if (!paused) held.splice(0).forEach(add);
  });
  byId("tail-clear").addEventListener("click", () => {
    rows.replaceChildren();
    held.length = 0;
  });
}

if (tail) watch();
