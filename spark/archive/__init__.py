"""An archive: messages in Parquet files, each exactly once."""
