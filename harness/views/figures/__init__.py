"""Figures as PNG, SVG, PDF and CSV, and as pictures of a page."""
