"""What the sidecar serves. Every answer only reads the published frame."""
