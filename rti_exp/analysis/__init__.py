"""Reading runs back: frames, statistics, tables, figures and the HTML report. Imports no torch."""
