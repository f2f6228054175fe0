// Runs in the page: elements that are wider than it, texts that are cut off, and labels that leave their picture.
const scrolls = '.scroll, pre, #servers.many', found = [], wide = document.documentElement.clientWidth; // innerWidth grows with what sticks out
const name = (e) => `${e.tagName}.${e.getAttribute('class') ?? ''} "${e.textContent.trim().slice(0, 60)}"`;
const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  if (!box.width || style.visibility === 'hidden' || style.opacity === '0' || e.closest('.skip')) continue;
  if (!e.closest(scrolls) && (box.right > wide + 1 || box.left < -1)) found.push(`${name(e)} is outside the page`);
  if (!(e instanceof SVGElement) && own(e) && style.overflowX === 'hidden' && e.scrollWidth > e.clientWidth + 1) found.push(`${name(e)} is cut off`);
  if (e.tagName === 'text') {
    const all = e.ownerSVGElement.getBoundingClientRect();
    if (box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1 || box.bottom > all.bottom + 1) found.push(`${name(e)} leaves its picture`);
  }
}
return found;
