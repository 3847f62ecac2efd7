"""The namespace of the protobuf packages."""
