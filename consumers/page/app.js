// The chat page: its parts put together, and what a person does with them.

import { getKey, forget, modelName, setKey, tellForgotten } from "./api.js";
import { Connection } from "./connection.js";
import { Conversations } from "./conversations.js";
import { LivePanel } from "./live.js";
import { Sessions } from "./sessions.js";
import { SessionsView } from "./sessions_view.js";
import { TurnsView } from "./turns_view.js";

const STATES = {
  connecting: "Connecting…", open: "Connected", waiting: "Reconnecting…", offline: "Offline", denied: "Needs a key",
};
const LIST_INTERVAL_MS = 60000; // "Today" becomes "Yesterday" while the page stays open
const NARROW = matchMedia("(max-width: 52rem)");

const $ = (id) => document.getElementById(id);
const say = (text) => { $("announce").textContent = text; };
let transcript; // the one that is shown
let model = null;
let isAway = false; // the gateway, since the socket was open last
let isDenied = false; // the gateway is there, and wants a key, or another one
let isDeclined = false; // the person closed the dialog for the key

const sessions = new Sessions({ onChange: changedElsewhere, onFull: (isFull) => { $("full").hidden = !isFull; } });
const connection = new Connection({ getKey, onState: showState, onOpen: opened, onFrame: (it) => talk.frame(it) });
const talk = new Conversations({ connection, sessions, onTurn: changed });
const live = new LivePanel($("live"));
const list = new SessionsView($("sessions"), { onChoose: choose, onRename: askName, onDelete: askDelete });
const view = new TurnsView({
  list: $("turns"), scroll: $("scroll"), toEnd: $("to-end"), say, trouble: () => isAway && (isDenied ? "denied" : "away"),
});

// --- what changes

function opened() {
  isDenied = false;
  talk.opened();
  tellForgotten();
  if (!model) checkKey();
}

function showState(state) {
  showConnection(isDenied && ["connecting", "waiting"].includes(state) ? "denied" : state);
  if (state === "connecting") return;
  isAway = state !== "open";
  view.refresh();
  if (!isAway) return;
  talk.closed();
  if (state === "waiting") checkKey();
}

function showConnection(name) {
  if ($("connection").dataset.state === name) return; // it is read aloud when it changes
  $("connection").dataset.state = name;
  $("connection").textContent = STATES[name];
  $("give-key").hidden = name !== "denied";
}

function changed(its, turn) {
  if (its === transcript) {
    view.update(turn);
    showControls();
  }
  if (turn.done || !turn.text || turn.next === 1) showList();
}

// Another tab has asked, renamed or deleted.
function changedElsewhere(id) {
  if (id === transcript.id && !sessions.get(id)) show(sessions.list()[0] ?? sessions.begin());
  else if (id === transcript.id) show(transcript);
  showList();
}

function show(chosen) {
  transcript = chosen;
  sessions.show(transcript);
  talk.show(transcript);
  view.show(transcript);
  showControls();
  showList();
}

function showList() {
  list.render(sessions.list(), transcript);
  $("title").textContent = transcript.title;
  document.title = transcript.turns.length ? `${transcript.title} · Headrace` : "Headrace";
}

function showControls() {
  const isBusy = transcript.current !== null;
  $("welcome").hidden = transcript.turns.length > 0;
  $("stop").hidden = !isBusy;
  $("send").hidden = isBusy;
  $("send").disabled = !$("text").value.trim();
}

function fit() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

// --- what a person does

function ask(text) {
  talk.ask(transcript, text);
  view.jumpToEnd();
}

function stop() {
  if (!transcript.running.length) return;
  talk.stop(transcript);
  say("Stopped");
  showControls();
}

function newChat() {
  show(sessions.begin());
  closeDrawer();
  $("text").focus();
}

function choose(chosen) {
  show(chosen);
  closeDrawer();
}

function askName(its) {
  $("name").value = its.title;
  openDialog("name-dialog", () => {
    its.title = $("name").value;
    sessions.save(its);
    showList();
  });
}

function askDelete(its) {
  $("delete-title").textContent = its.title;
  openDialog("delete-dialog", () => {
    talk.leave(its);
    sessions.remove(its);
    forget(its.id);
    if (its === transcript) show(sessions.list()[0] ?? sessions.begin());
    showList();
    say("Deleted");
    ($("sessions").querySelector("[aria-current]") ?? $("new")).focus();
  });
}

function openDialog(id, onYes) {
  const dialog = $(id);
  dialog.returnValue = "";
  dialog.onclose = () => { if (dialog.returnValue === "yes") onYes?.(); };
  dialog.showModal();
}

function toggleList() {
  const isShown = document.body.classList.toggle(NARROW.matches ? "drawer" : "no-list");
  const isOpen = NARROW.matches ? isShown : !isShown;
  $("list").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) ($("sessions").querySelector("[aria-current]") ?? $("new")).focus();
}

function closeDrawer() {
  if (!document.body.classList.contains("drawer")) return;
  document.body.classList.remove("drawer");
  $("list").setAttribute("aria-expanded", "false");
  $("list").focus();
}

function toggleLive() {
  live.toggle();
  $("live-toggle").setAttribute("aria-expanded", String(live.isOpen));
}

// --- keys of the gateway

async function checkKey() {
  try {
    model = await modelName();
    isDenied = false;
    $("model").textContent = model ?? "";
    $("model").title = model ?? "";
    $("model").hidden = !model;
  } catch (problem) {
    isDenied = Boolean(problem.isDenied) && !connection.isOpen; // open: that was about the key before
    if (!isDenied) return; // the gateway is away: the socket tries again
    showConnection("denied");
    view.refresh();
    if (isDeclined || document.querySelector("dialog[open]")) return;
    askKey();
  }
}

function askKey() {
  $("key-refused").hidden = !getKey();
  $("key").value = "";
  openDialog("key-dialog");
}

$("key-form").addEventListener("submit", () => {
  setKey($("key").value);
  isDenied = isDeclined = false;
  connection.renew();
});
$("give-key").addEventListener("click", askKey);
$("key-dialog").addEventListener("cancel", () => { isDeclined = true; });

// --- the keyboard

const SHORTCUTS = {
  "mod+shift+o": newChat,
  "mod+shift+s": toggleList,
  "mod+shift+l": toggleLive,
  "mod+/": () => openDialog("help-dialog"),
  "shift+escape": () => $("text").focus(),
  escape: () => (document.body.classList.contains("drawer") ? closeDrawer() : stop()),
};

addEventListener("keydown", (pressed) => {
  if (pressed.isComposing || document.querySelector("dialog[open]")) return;
  const names = [(pressed.ctrlKey || pressed.metaKey) && "mod", pressed.shiftKey && "shift", pressed.key.toLowerCase()];
  const action = SHORTCUTS[names.filter(Boolean).join("+")];
  if (!action) return;
  pressed.preventDefault();
  action();
});

$("text").addEventListener("keydown", (pressed) => {
  if (pressed.key !== "Enter" || pressed.shiftKey || pressed.isComposing) return;
  pressed.preventDefault();
  $("ask").requestSubmit();
});

// --- the mouse

$("ask").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  const text = $("text").value.trim();
  if (!text || transcript.current) return;
  if (isDeclined) {
    isDeclined = false;
    checkKey();
  }
  $("text").value = "";
  fit();
  ask(text);
});
$("text").addEventListener("input", () => { fit(); showControls(); });
$("stop").addEventListener("click", () => { stop(); $("text").focus(); });
$("new").addEventListener("click", newChat);
$("list").addEventListener("click", toggleList);
$("scrim").addEventListener("click", closeDrawer);
$("live-toggle").addEventListener("click", toggleLive);
$("help").addEventListener("click", () => openDialog("help-dialog"));
for (const idea of document.querySelectorAll(".idea")) {
  idea.addEventListener("click", () => { ask(idea.textContent); $("text").focus(); });
}
NARROW.addEventListener("change", () => {
  document.body.classList.remove("drawer", "no-list");
  $("list").setAttribute("aria-expanded", String(!NARROW.matches));
});
$("list").setAttribute("aria-expanded", String(!NARROW.matches));
setInterval(showList, LIST_INTERVAL_MS);

sessions.load();
show(sessions.last());
checkKey();
connection.open();
