"""The engine: model, tokens and text on one device. Knows nothing of Kafka."""
