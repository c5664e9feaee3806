"""Experiment trackers as views of the store: what is recorded of a table or a study, written to TensorBoard, MLflow or W&B.

projection  what a tracker shows of a stage and of a cell
tracker     what a tracker is, and one of each kind by its name
writer      writes to trackers beside a command that trains, and all at once afterwards

Nothing of a tracker is imported before something is written to it.
"""
