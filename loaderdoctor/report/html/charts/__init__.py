"""Charts of report.html as SVG text; the only modules that import matplotlib."""
