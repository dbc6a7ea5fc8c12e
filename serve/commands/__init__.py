"""The subcommands that talk to a running server."""
