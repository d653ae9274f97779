"""From runs on a few workers to time, speed-up and cost on many: a model of each phase, fitted and tested.

`measured` turns records and published rows into the same few numbers a run, `fitting` fits one phase,
`model` puts the phases together and says how far off it was, `advice` answers questions in words.
"""
