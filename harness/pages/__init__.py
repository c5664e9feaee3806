"""Tables and studies as pages of HTML: one file each, without a request to anywhere; no torch, no ray."""
