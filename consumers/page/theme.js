// Light, dark, or as the system has it. A plain script, so that the page is never shown in the other colours.

(() => {
  const STORE = "headrace.theme";
  const NEXT = { system: "light", light: "dark", dark: "system" };

  function stored() {
    try {
      return localStorage.getItem(STORE) ?? "system";
    } catch {
      return "system";
    }
  }

  let theme = Object.hasOwn(NEXT, stored()) ? stored() : "system";

  function show() {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = { system: "System colours", light: "Light", dark: "Dark" }[theme];
  }

  show();
  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      theme = NEXT[theme];
      show();
      try {
        localStorage.setItem(STORE, theme);
      } catch {
        // storage is full or forbidden: the choice holds until the page is left
      }
    });
  });
})();
