"""Generated protobuf and gRPC code; see `control.proto`."""
