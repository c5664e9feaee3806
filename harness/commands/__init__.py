"""What the commands do: prepare a request, train what is missing, run a study. Nothing is printed or asked in here."""
