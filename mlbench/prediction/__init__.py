"""From runs on a few workers to time, speed-up and cost on many: a model of each phase, fitted and tested.

`measured` turns records and `published` rows into the same few numbers a run; `fitting` fits one phase and
`model` all of them; `evaluation` says what coefficients mean for a worker count; `forecast` adds intervals
and cost; `holdout` tests the model on runs that it has not seen; `advice` and `words` say it to people.
"""
