"""From a request to the stages that it needs: tables as their YAML says them, resolved, planned and scheduled; no torch, no ray."""
