// Draws every figure; where that fails, or without scripts, the still picture stays.
(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures-data").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  function options() {
    var ink = dark.matches ? "#e6e6e3" : "#1b1b1b";
    var colours = { labelColor: ink, titleColor: ink, domainColor: ink, tickColor: ink };
    return {
      actions: false,
      ast: true, // expressions are interpreted: the page allows no eval
      renderer: "svg",
      tooltip: { theme: dark.matches ? "dark" : "light" },
      config: { background: "transparent", axis: colours, legend: colours, text: { color: ink } },
    };
  }

  function draw(place) {
    place.parentNode.classList.add("drawn"); // first, so that the place has a width
    vegaEmbed(place, figures[place.dataset.figure], options()).catch(function (error) {
      place.parentNode.classList.remove("drawn");
      throw error;
    });
  }

  document.querySelectorAll(".live").forEach(function (place) {
    draw(place);
    dark.addEventListener("change", function () {
      draw(place);
    });
  });
})();
