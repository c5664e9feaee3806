"""Statistics of crossed designs: subsets x seeds, the same for all rows of a table. Pure: numpy, and scipy where it is used.

crossed  variance components, standard errors, intervals; test items as a third factor; one row minus another; Holm
power    what a planned design can detect

`tests/statistics/test_coverage.py` measures every interval and test, `docs/statistics.md` explains them.
"""
