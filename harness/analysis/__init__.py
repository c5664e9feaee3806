"""From records to numbers: scores, cells, comparisons, variances, costs and what a design detects; no words, no torch, no ray."""
