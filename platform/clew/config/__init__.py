"""The run configuration: schema, YAML loading and overrides, without torch, mlflow or streamlit."""
