// Buttons that copy a text.

const SHOWN_MS = 1500;

// A button that copies what `text()` returns, and says that it did.
export function copyButton(text, label) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", className: "copy", textContent: "Copy" });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", async () => {
    made.textContent = (await copied(text())) ? "Copied" : "Not allowed";
    made.setAttribute("aria-label", made.textContent);
    setTimeout(() => {
      made.textContent = "Copy";
      made.setAttribute("aria-label", label);
    }, SHOWN_MS);
  });
  return made;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedTheOldWay(text); // no clipboard without TLS, except on this machine
  }
}

function copiedTheOldWay(text) {
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "unseen";
  document.body.append(box);
  box.select();
  try {
    return document.execCommand("copy");
  } finally {
    box.remove();
  }
}
