"""Recording a range of a pipeline's topics, answering it again elsewhere, and comparing."""
