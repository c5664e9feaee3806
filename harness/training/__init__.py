"""The one training loop and its evaluation. No ray, no disk layout."""
