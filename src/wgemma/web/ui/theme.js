// Runs before the page is drawn, so that a chosen theme does not flash. A plain script, because modules wait.
(() => {
  try {
    const theme = localStorage.getItem("wgemma.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // a browser that keeps nothing follows the system
  }
})();
