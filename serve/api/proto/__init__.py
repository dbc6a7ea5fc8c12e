"""Generated protobuf and gRPC code; see `generate.proto`."""
