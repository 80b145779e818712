#!/usr/bin/env python3
"""Ranks of `octet train` on two hosts: network namespaces of this machine with a link between them and names of their own.
By the control plane and, where it is, under mpirun: the files of ranks as threads, and tensors have crossed the link. A link
that goes down: each rank names the other. Usage: two_hosts_test.py OCTET TEXT. Exit status 77: no right to make namespaces."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from rank_runs import SETTINGS, Ranks, make_corpus, newest_checkpoint, run_threads, states, steps_done, wait_until

TIMEOUT = 3


class Hosts:
    """Two namespaces with addresses 10.213.7.1 and .2 (nowhere else), gone at the end of the context."""

    def __init__(self):
        self.names = [f"octet{os.getpid()}{letter}" for letter in "ab"]
        self.links = [f"oc{os.getpid()}{letter}" for letter in "ab"]
        self.addresses = ["10.213.7.1", "10.213.7.2"]

    def __enter__(self):
        a, b = self.links
        try:
            for name in self.names:
                self.ip("netns", "add", name)
            self.ip("link", "add", a, "netns", self.names[0], "type", "veth", "peer", "name", b, "netns", self.names[1])
            for name, link, address in zip(self.names, self.links, self.addresses):
                self.ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
                for each in ("lo", link):
                    self.ip("-n", name, "link", "set", each, "up")
            subprocess.run([*self.on(0), "true"], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            print(f"skipped: no network namespaces here: {getattr(error, 'stderr', '') or error}")
            sys.exit(77)
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def ip(self, *words):
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

    def on(self, host):
        """Words before a program that runs there."""
        name = self.names[host]
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]

    def bytes_sent(self, host):
        return int(re.search(r"TX:.*\n\s*(\d+)", self.ip("-n", self.names[host], "-s", "link", "show", self.links[host]))[1])


def crossed(hosts, run):
    """What each host sends while `run` is called."""
    before = [hosts.bytes_sent(host) for host in (0, 1)]
    run()
    return [hosts.bytes_sent(host) - was for host, was in enumerate(before)]


def by_control(hosts, octet, folder, settings):
    before = {rank: [*hosts.on(rank), "env", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", f"MASTER_ADDR={hosts.addresses[0]}"]
              for rank in (0, 1)}
    return Ranks(folder, octet, settings, before=before).start()


def by_mpi(hosts, octet, folder, settings):
    folder.mkdir()
    agent = folder / "agent"  # in place of ssh: options, the host, words of a command
    agent.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nshift\n'
                     f"exec {' '.join(hosts.on(1)[:6])} sh -c 'hostname {hosts.names[1]}; exec sh -c \"$*\"' sh \"$@\"\n")
    agent.chmod(0o755)
    command = ["mpirun", "-n", "2", "--host", ",".join(f"{address}:1" for address in hosts.addresses),
               "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self", "-x", f"MASTER_ADDR={hosts.addresses[0]}",
               octet, "train", *SETTINGS, *settings]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run([str(word) for word in [*hosts.on(0), *command]], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def main():
    octet = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
        work = pathlib.Path(folder)
        common = [f"data.train={make_corpus(octet, sys.argv[2], work)}"]
        run_threads(octet, work, [*common, "train.steps=6", "out=threads"])
        expected = states(newest_checkpoint(work / "threads"))
        least = 6 * len(expected[0]) // 4  # half of the float32 gradients in every step, as bf16 at the least

        def check(name, sent):
            print(f"{name}: {sent[0]} bytes from rank 0's host, {sent[1]} from rank 1's")
            assert states(newest_checkpoint(work / name / "out")) == expected, f"{name}: other files than by threads"
            assert min(sent) > least, f"{name}: {sent} bytes have crossed the link, want more than {least}"

        settings = [*common, "train.steps=6", "out=" + str(work / "control" / "out")]
        check("control", crossed(hosts, by_control(hosts, octet, work / "control", settings).finish))
        if shutil.which("mpirun") and (octet.parent / "liboctet_mpi.so").exists():
            settings[-1] = "out=" + str(work / "mpi" / "out")
            check("mpi", crossed(hosts, lambda: by_mpi(hosts, octet, work / "mpi", settings)))

        out = work / "parted" / "out"
        settings = [*common, "train.steps=1G", f"parallel.timeout={TIMEOUT}", f"out={out}"]
        with by_control(hosts, octet, work / "parted", settings) as ranks:
            wait_until(lambda: steps_done(out) > 2, "steps")
            hosts.ip("-n", hosts.names[0], "link", "set", hosts.links[0], "down")
            for rank in (0, 1):
                assert ranks.end(rank, TIMEOUT + 5) != 0, ranks.text(rank)
                want = f"rank {1 - rank} of 2 on {hosts.names[1 - rank]} was silent for {TIMEOUT} s; it was in step"
                assert len(ranks.errors(rank)) == 1 and want in ranks.errors(rank)[0], ranks.text(rank)


if __name__ == "__main__":
    main()
