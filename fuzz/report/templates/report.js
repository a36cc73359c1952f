"use strict";
const buttons = [...document.querySelectorAll(".code button")];
const copy = async (button) => {
  const text = button.parentElement.querySelector("pre");
  let done = true;
  try {
    await navigator.clipboard.writeText(text.textContent);
  } catch {
    getSelection().selectAllChildren(text);
    done = document.execCommand("copy");
  }
  for (const other of buttons) { other.textContent = "Copy"; }
  button.textContent = done ? "Copied" : "Selected";
};
for (const button of buttons) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}
const open = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) { target.open = true; }
};
addEventListener("hashchange", open);
open();
