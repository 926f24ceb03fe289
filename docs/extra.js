// Images open at full size. Tables, code and images that are wider than the page can be scrolled with the keyboard, and
// code blocks and the search dialog have accessible names.
const NARROW = "(max-width: 44.9em)";

// On narrow screens, show the screenshot of a narrow window, which is stored next to the wide one.
const addNarrowSource = (image) => {
  const picture = document.createElement("picture");
  const source = document.createElement("source");
  source.media = NARROW;
  source.srcset = image.src.replace("-1280.png", "-390.png");
  image.replaceWith(picture);
  picture.append(source, image);
  return picture;
};

const linkToFullSize = (image) => {
  if (image.closest("a")) return;
  const link = document.createElement("a");
  link.className = "picture";
  link.href = image.src;
  link.title = "Open the image at full size";
  const shown = image.src.endsWith("-1280.png") ? addNarrowSource(image) : image;
  shown.replaceWith(link);
  link.append(shown);
};

const nameCode = () => {
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code ${i + 1}`));
};

// Frames that are drawn with letters fall apart where their lines are wrapped.
const keepFramesWhole = (code) => {
  if (code.textContent.includes("╭─")) code.parentElement.classList.add("framed");
};

const makeReachable = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .framed, .formula"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
};

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-content img").forEach(linkToFullSize);
  document.querySelectorAll(".md-content pre > code").forEach(keepFramesWhole);
  const update = () => {
    nameCode();
    makeReachable();
  };
  new MutationObserver(update).observe(document.body, { childList: true, subtree: true });
  addEventListener("resize", update);
  addEventListener("load", update); // styles may change what fits
  update();
});
