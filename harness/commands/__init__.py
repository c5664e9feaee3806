"""What the commands do: prepare a request, train what is missing, run a study. Modules here print nothing and ask nothing."""
