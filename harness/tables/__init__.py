"""Tables as data, plans, selection, aggregation and rendering: pure code over records; no torch, no ray."""
