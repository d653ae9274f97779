"""Results in and out: zip files in the layout of MLBench's downloads (2018-2021), ours beside theirs."""
