// Draws every figure; where that fails, or without scripts, the still picture stays.
(function () {
  "use strict";
  var figures = JSON.parse(document.getElementById("figures-data").textContent);
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  var buttons = {
    responsive: true,
    displaylogo: false,
    displayModeBar: window.matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  function scheme() {
    var ink = dark.matches ? "#e6e6e3" : "#1b1b1b";
    var line = dark.matches ? "#3a3a38" : "#e2e2e2";
    var change = { "font.color": ink, "font.family": "system-ui, sans-serif", "modebar.bgcolor": "rgba(0,0,0,0)" };
    ["xaxis", "yaxis"].forEach(function (axis) {
      change[axis + ".gridcolor"] = line;
      change[axis + ".linecolor"] = ink;
    });
    return change;
  }

  document.querySelectorAll(".live").forEach(function (place) {
    var figure = figures[place.dataset.figure];
    place.parentNode.classList.add("drawn"); // first, so that the place has a width
    Plotly.newPlot(place, figure.data, figure.layout, buttons)
      .then(function () {
        return Plotly.relayout(place, scheme());
      })
      .catch(function (error) {
        place.parentNode.classList.remove("drawn");
        throw error;
      });
    dark.addEventListener("change", function () {
      Plotly.relayout(place, scheme());
    });
  });
})();
