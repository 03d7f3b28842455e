"""A trainer of the backend `command` that runs on a node of a Ray cluster, where there are GPUs.

    trainers:
      prover:
        backend: command
        command: [python, ray_trainer.py, "1",
                  python, train.py, "{dataset}", "{base_model}", "{output}", "{model_file}"]

Of the words after the script the first says how many GPUs the trainer takes, and the others are its command, which
runs as one task of the cluster in the folder that nip-run is run in. That folder, and the results, are on a disk that
all nodes have. nip-run keeps what it prints, and takes its exit code for the trainer's.
"""

import subprocess
import sys
from pathlib import Path

import ray


def train(command: list[str], folder: str) -> tuple[int, str]:
    """The exit code of a command, and what it said."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main() -> int:
    gpus, *command = sys.argv[1:]
    # The address is that of RAY_ADDRESS, or of the cluster that this machine is a node of.
    ray.init(address="auto", log_to_driver=False)
    task = ray.remote(num_cpus=1, num_gpus=float(gpus), max_retries=0)(train)
    code, said = ray.get(task.remote(command, str(Path.cwd())))
    print(said, end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
