"""Tables as one command: what their rows are, the runs behind them, and what those say together.

```bash
coevo experiment controls --budget tiny --seeds 2
```

A table is a TOML file (``tables/``, or one of your own). Its cells are runs in
``runs/EXPERIMENT/ROW-SEED``: what is finished is not run again, what was cut goes on.
"""
