"""The subcommands of the aorta command, one module each."""
