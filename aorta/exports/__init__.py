"""Data frames, MLflow, W&B and schemas: ways of a run to other tools."""
