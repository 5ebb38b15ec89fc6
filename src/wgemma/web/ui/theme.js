// Runs before the first paint, so that the page does not flash in the wrong theme. Not a module: those are deferred.
(() => {
  try {
    const theme = localStorage.getItem("wgemma.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // storage is blocked: follow the system
  }
})();
