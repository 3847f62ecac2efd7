// What the page asks by HTTP, with the key where the gateway wants one: models, metrics, forgetting.

import { local, ofTab } from "./storage.js";

const KEY = "headrace.key"; // of this tab only
const FORGOTTEN = "headrace.forget.2"; // sessions that the gateway has still to be told of
const MAX_FORGOTTEN = 200;
const TIMEOUT_MS = 10000;

export function getKey() {
  return ofTab.getItem(KEY);
}

export function setKey(key) {
  ofTab.setItem(KEY, key);
}

function call(path, options = {}) {
  const key = getKey();
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  return fetch(path, { ...options, headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
}

// The name of the model, or null where there is none. Throws: an error with `isDenied` for a wrong key.
export async function modelName() {
  const answer = await call("/v1/models");
  if (answer.status === 401) throw Object.assign(new Error("the key is not accepted"), { isDenied: true });
  return answer.ok ? (await answer.json()).data[0]?.id ?? null : null;
}

export async function metricsText() {
  const answer = await call("/metrics");
  if (!answer.ok) throw new Error(`/metrics answered ${answer.status}`);
  return answer.text();
}

function forgotten() {
  try {
    return JSON.parse(local.getItem(FORGOTTEN)) ?? [];
  } catch {
    return [];
  }
}

function setForgotten(ids) {
  try {
    local.setItem(FORGOTTEN, JSON.stringify(ids.slice(-MAX_FORGOTTEN)));
  } catch {
    // storage is full or forbidden: then it is told once, now
  }
}

// Have the gateway forget a session: now, or once it can be reached.
export function forget(sessionId) {
  setForgotten([...forgotten(), sessionId]);
  return tellForgotten([...forgotten(), sessionId]);
}

export async function tellForgotten(ids = forgotten()) {
  for (const id of new Set(ids)) {
    const answer = await call(`/v1/sessions/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => null);
    if (!answer || answer.status === 429 || answer.status >= 500 || answer.status === 401) return;
    setForgotten(forgotten().filter((it) => it !== id)); // 404: it knows of none
  }
}
