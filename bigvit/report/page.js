"use strict";
(() => {
  const root = document.documentElement;
  const button = document.querySelector(".theme");
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  const keep = { get: () => null, set: () => {} };
  try {
    keep.get = () => localStorage.getItem("bigvit-theme");
    keep.set = (value) => localStorage.setItem("bigvit-theme", value);
    keep.get();
  } catch {
    keep.get = () => null;
    keep.set = () => {};
  }
  const show = (next) => {
    theme = themes.includes(next) ? next : "auto";
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.querySelector("span").textContent = `Theme: ${theme}`;
  };
  button.hidden = false;
  show(keep.get());
  button.addEventListener("click", () => {
    show(themes[(themes.indexOf(theme) + 1) % themes.length]);
    keep.set(theme);
  });

  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };
  const nearest = (xs, x) => {
    let low = 0;
    let high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle;
      else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  const make = (tag, text) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const charts = JSON.parse(document.getElementById("charts").textContent);
  document.querySelectorAll(".chart[data-chart]").forEach((figure) => {
    const chart = charts[Number(figure.dataset.chart)];
    const lines = chart.series;
    if (!lines.length) return;
    const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const plot = figure.querySelector(".plot");
    const area = figure.querySelector(".area");
    const cross = make("div");
    const tip = make("div");
    cross.className = "cross";
    tip.className = "tip";
    tip.setAttribute("role", "status");
    cross.hidden = tip.hidden = true;
    area.append(cross, tip);
    let at = places.length - 1;
    const read = (index) => {
      at = Math.max(0, Math.min(places.length - 1, index));
      const x = places[at];
      const share = chart.high > chart.low ? (x - chart.low) / (chart.high - chart.low) : 0.5;
      tip.replaceChildren();
      const head = make("div");
      head.append(make("span", chart.across), make("strong", short(x)));
      tip.append(head);
      lines.forEach((line) => {
        const margin = (chart.high - chart.low) / 50;
        const i = nearest(line.x, x);
        if (Math.abs(line.x[i] - x) > margin && (x < line.x[0] || x > line.x[line.x.length - 1])) return;
        const row = make("div");
        const name = make("span");
        name.append(figure.querySelector(`[data-key="${line.key}"] svg`)?.cloneNode(true) ?? "", line.name);
        row.append(name, make("strong", short(line.y[i])));
        tip.append(row);
      });
      cross.style.left = `${100 * share}%`;
      const right = share > 0.5;
      tip.style.left = right ? "auto" : `calc(${100 * share}% + 10px)`;
      tip.style.right = right ? `calc(${100 * (1 - share)}% + 10px)` : "auto";
      cross.hidden = tip.hidden = false;
    };
    const hide = () => {
      cross.hidden = tip.hidden = true;
    };
    const point = (event) => {
      const box = area.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      read(nearest(places, chart.low + share * (chart.high - chart.low)));
    };
    area.addEventListener("pointermove", point);
    area.addEventListener("pointerdown", point);
    area.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -places.length, End: places.length };
      if (event.key === "Escape") hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      read(tip.hidden ? at : at + steps[event.key]);
    });
  });

  const links = new Map();
  document.querySelectorAll(".rail a").forEach((link) => links.set(link.hash.slice(1), link));
  const seen = new Set();
  const watch = new IntersectionObserver(
    (entries) => {
      entries.forEach((entry) => (entry.isIntersecting ? seen.add(entry.target.id) : seen.delete(entry.target.id)));
      const first = [...links.keys()].find((id) => seen.has(id));
      if (first === undefined) return;
      links.forEach((link, id) => (id === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    },
    { rootMargin: "-10% 0px -60% 0px" },
  );
  links.forEach((_, id) => watch.observe(document.getElementById(id)));
  document.querySelectorAll("nav details a").forEach((link) =>
    link.addEventListener("click", () => link.closest("details").removeAttribute("open")),
  );
})();
