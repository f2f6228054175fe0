// Runs in the page: pairs of texts in a picture that cover each other.
const texts = [...document.querySelectorAll(arguments[0] + ' text')].filter((e) => e.textContent.trim());
const boxes = texts.map((e) => [e.textContent.trim(), e.getBoundingClientRect()]);
return boxes.flatMap(([one, a], n) => boxes.slice(n + 1).filter(([, b]) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3
).map(([other]) => `${one} / ${other}`));
