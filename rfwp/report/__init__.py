"""Figures and tables from the lines that runs leave behind."""
