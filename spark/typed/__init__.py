"""Bodies into columns: JSON and text by the schema of a topic.

    schema file -> TopicSchema -> BodyDecoder: batch of messages -> columns value, quarantine

The job `archive` calls it, in the driver for the schema and in Spark's workers for the bodies. It
knows neither Spark nor tables, and never changes a body.
"""
