"""Colours, marks and dashes of the charts; those of a page are in page.css."""

# Okabe and Ito 2008, "Color universal design": told apart with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A800")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right", "triangle-left")
CROSS = "M-1,-1L1,1M1,-1L-1,1"
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2, 1, 2, 1, 2])
DOTTED = [2, 3]
GREY = "#808080"  # readable on white and on black
