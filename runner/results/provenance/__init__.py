"""What a run was made of: packages, git state, hashes of its inputs."""
