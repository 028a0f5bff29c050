"use strict";
// Before the first paint: a choice that the server has not seen yet, as on a page from the cache.
(() => {
  const found = document.cookie.match(/(?:^|; )skylarkmq-theme=(light|dark)/);
  if (found) document.documentElement.dataset.theme = found[1];
})();
