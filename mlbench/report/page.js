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

  function layers(part) {
    var inner = (part.layer || []).concat(part.vconcat || [], part.hconcat || []);
    return [part].concat.apply([part], inner.map(layers));
  }

  function rows(figure) {
    var seen = {}, found = [];
    layers(figure).forEach(function (layer) {
      var named = layer.data && layer.data.name;
      var values = (layer.data && layer.data.values) || (named && figure.datasets && figure.datasets[named]) || [];
      values.forEach(function (row) {
        var text = JSON.stringify(row);
        if (!seen[text]) found.push(row);
        seen[text] = true;
      });
    });
    return found;
  }

  function csv(figure) {
    var all = rows(figure), names = [];
    all.forEach(function (row) {
      Object.keys(row).forEach(function (name) {
        if (names.indexOf(name) < 0 && name !== "below") names.push(name);
      });
    });
    function cell(value) {
      var text = value === undefined || value === null ? "" : String(value);
      if (/^[=+@-]/.test(text) && isNaN(Number(text))) text = "'" + text; // no formula for a spreadsheet
      return /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
    }
    return [names].concat(all.map(function (row) {
      return names.map(function (name) { return row[name]; });
    })).map(function (line) { return line.map(cell).join(","); }).join("\n") + "\n";
  }

  function scales(figure) {
    return layers(figure).map(function (layer) {
      return layer.encoding && layer.encoding.y && layer.encoding.y.scale;
    }).filter(Boolean);
  }

  function switchable(figure) {
    return scales(figure).length > 0 && !/"top"/.test(JSON.stringify(rows(figure).slice(0, 1)))
      && rows(figure).every(function (row) { return row.y === undefined || row.y === null || row.y > 0; });
  }

  function toggle(figure) {
    scales(figure).forEach(function (scale) {
      var log = scale.type !== "log";
      scale.type = log ? "log" : "linear";
      if (log) {
        scale.before = { domain: scale.domain, domainMin: scale.domainMin, zero: scale.zero };
        delete scale.domain; delete scale.domainMin; delete scale.zero;
      } else if (scale.before) {
        Object.keys(scale.before).forEach(function (name) {
          if (scale.before[name] !== undefined) scale[name] = scale.before[name];
        });
      }
    });
  }

  function tools(place) {
    var name = place.dataset.figure, figure = figures[name], bar = document.createElement("div");
    var title = place.parentNode.querySelector("figcaption strong").textContent;
    bar.className = "tools";
    function link(text, href) {
      var a = document.createElement("a");
      a.textContent = text;
      a.setAttribute("aria-label", text + " of " + title);
      a.download = name + "." + text.toLowerCase();
      a.href = href;
      bar.appendChild(a);
    }
    link("CSV", "data:text/csv;charset=utf-8," + encodeURIComponent(csv(figure)));
    link("SVG", place.parentNode.querySelector(".still img").src);
    if (switchable(figure)) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = "log / linear";
      button.setAttribute("aria-label", "log or linear axis of " + title);
      button.addEventListener("click", function () { toggle(figure); draw(place); });
      bar.appendChild(button);
    }
    place.parentNode.insertBefore(bar, place);
  }

  function filter() {
    var chosen = {};
    document.querySelectorAll(".filters select").forEach(function (one) {
      if (one.value) chosen[one.name] = one.value;
    });
    document.querySelectorAll("section.group, tbody tr").forEach(function (part) {
      part.hidden = Object.keys(chosen).some(function (name) {
        return part.dataset[name] !== undefined && part.dataset[name] !== chosen[name];
      });
    });
  }

  document.documentElement.classList.add("scripted");
  document.querySelectorAll(".filters select").forEach(function (one) {
    one.addEventListener("change", filter);
  });
  document.querySelectorAll(".live").forEach(function (place) {
    tools(place);
    draw(place);
    dark.addEventListener("change", function () {
      draw(place);
    });
  });
})();
