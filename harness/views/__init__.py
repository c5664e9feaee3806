"""From numbers to what a reader sees: captions, tables as text, Markdown, LaTeX, CSV and JSON, pages of HTML, figures; no torch, no ray."""
