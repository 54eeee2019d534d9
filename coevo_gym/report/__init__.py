"""Run reports: one self-contained HTML file, and a standalone picture.

The charts are drawn by this package (``svg``, ``charts``, ``bars``, ``maps``) instead of a library,
because the core install writes the report at the end of every run, and the report contains no
JavaScript and must stay below 1 MiB. The viewer's library draws in the browser and would add 489
kB; matplotlib and vl-convert would add 102 and 84 MB to an install of 151 MB, and their pictures
are three times as large and have no tooltips on their marks. ``docs/charts.md`` has the
measurements.
"""
