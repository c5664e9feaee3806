"""The search for hyperparameters: spaces, points as ordinary runs, racing over replicates, the study, and what it found.

space       a method's space: its YAML file, and under one preset grid, search, default point, what it is judged by
points      a point to its runs, replicate by replicate, and their scores on dev; trials
racing      the paired test that drops a point before all its replicates are run
study       Optuna's study in the database of the runs: its sampler, and its trials with what the records say of them
"""
