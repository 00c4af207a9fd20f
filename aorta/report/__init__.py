"""Tables, plots and documents."""
