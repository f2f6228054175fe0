"use strict";
// Small helpers: create elements and write figures.

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const given = (value) => value !== null && value !== undefined;
const known = (value, write) => (given(value) ? write(value) : "–");
const total = (values) => values.reduce((sum, value) => sum + value, 0);

const count = (value) => Math.round(value).toLocaleString("en");
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const finePercent = (value) => `${(100 * value).toFixed(2)} %`;
const millis = (value) => (value >= 1 ? `${value.toFixed(2)} s` : `${(1000 * value).toFixed(value > 0 && value < 0.01 ? 1 : 0)} ms`);
const joules = (value) => (value >= 1 ? `${value.toFixed(2)} J` : `${(1000 * value).toFixed(value > 0 && value < 0.01 ? 1 : 0)} mJ`);
const watts = (value) => `${value.toFixed(value < 10 ? 1 : 0)} W`;
const perSecond = (value) => `${value < 10 ? value.toFixed(1) : count(value)} /s`;
const bytes = (value) => (value < 1e9 ? `${(value / 1e6).toFixed(0)} MB` : `${(value / 1e9).toFixed(2)} GB`);

function bar(element, shares, colours) { // a bar of stacked shares
  while (element.children.length < shares.length) element.append(make("i"));
  shares.forEach((share, n) => {
    element.children[n].style.background = colours[n];
    element.children[n].style.width = `${Math.min(100, 100 * share)}%`;
  });
}

function swatch(colour, name) {
  const mark = make("i");
  mark.style.background = colour;
  return make("span", {}, mark, name);
}
