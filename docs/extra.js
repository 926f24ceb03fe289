// Tables and code that are wider than their place can be reached and moved by keys; the search dialog has a name.
document.addEventListener("DOMContentLoaded", () => {
  const reach = () => {
    for (const one of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code"))
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
  };
  new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
  addEventListener("resize", reach);
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  reach();
});
