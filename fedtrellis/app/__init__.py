"""The app: what methods, tasks and domains declare, and a run made of it."""
