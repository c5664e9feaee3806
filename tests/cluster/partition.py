"""Run as a program, as root on Linux: a cluster of two raylets, each in a network namespace of its own, behind a bridge in a third. Prints the address
of the first and the prefix of a command that runs there. Once there is a file `cut` in the current folder, it takes the second off the bridge, and
every packet is lost; once there is a file `end`, it ends, and all that it made.

arguments: a word for the names of the namespaces, and a folder for Ray with a short name
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

NETWORK = "10.231.57"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def main(word: str, folder: str) -> None:
    bridge, *names = [f"harness-{word}-{number}" for number in range(3)]
    ray = str(Path(sys.executable).parent / "ray")
    raylets = []
    try:
        for name in (bridge, *names):
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
        ip(f"-n {bridge} link add bridge type bridge")
        ip(f"-n {bridge} link set bridge up")
        for number, name in enumerate(names, 1):
            ip(f"-n {bridge} link add port{number} type veth peer name node netns {name}")
            ip(f"-n {name} addr add {NETWORK}.{number}/24 dev node")
            ip(f"-n {name} link set node up")
            ip(f"-n {bridge} link set port{number} master bridge up")
        for number, name in enumerate(names, 1):
            place = ["--head", "--port", "6379", "--include-dashboard", "false"]
            place = place if number == 1 else ["--address", f"{NETWORK}.1:6379"]
            words = [ray, "start", *place, "--node-ip-address", f"{NETWORK}.{number}", "--num-cpus", "1", "--block"]
            words += ["--temp-dir", f"{folder}/{number}", "--disable-usage-stats"]
            raylets.append(subprocess.Popen(["ip", "netns", "exec", name, *words], stdout=subprocess.DEVNULL))
            if number == 1:  # the second joins it
                asks = ["ip", "netns", "exec", name, ray, "health-check", "--address", f"{NETWORK}.1:6379"]
                while subprocess.run(asks, capture_output=True).returncode:
                    time.sleep(0.5)
        print(f"{NETWORK}.1:6379", f"ip netns exec {names[0]}", flush=True)
        while not Path("cut").exists():
            time.sleep(0.1)
        ip(f"-n {bridge} link set port2 nomaster")
        while not Path("end").exists():
            time.sleep(0.1)
    finally:
        for name in names:
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                subprocess.run(["kill", "-9", pid])
        for raylet in raylets:
            raylet.wait()
        for name in (bridge, *names):
            subprocess.run(["ip", "netns", "del", name])


if __name__ == "__main__":
    main(*sys.argv[1:])
