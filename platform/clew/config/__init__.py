"""The run configuration: schema, YAML loading and overrides, without torch, MLflow or Streamlit."""
