"""The configuration: one schema, YAML files, dotted overrides."""
