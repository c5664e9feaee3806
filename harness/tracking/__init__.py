"""Experiment trackers as views of the store: what is recorded of a table or a study, written to TensorBoard, MLflow or W&B.

projection  what a tracker shows of a stage and of a cell
trackers    what a tracker is, and the three that there are
writer      writes to trackers beside a command that trains, and all at once afterwards
"""
