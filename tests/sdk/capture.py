"""Writes every frame of one interface to a file until standard input ends: capture.py INTERFACE FILE."""

import select
import socket
import sys

ETH_P_ALL = 3


def main():
    interface, path = sys.argv[1:]
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    raw.bind((interface, 0))
    with open(path, "wb", buffering=0) as out:
        print("capturing", flush=True)
        while True:
            ready, _, _ = select.select([raw, sys.stdin], [], [])
            if raw in ready:
                out.write(raw.recv(1 << 17))
            elif not sys.stdin.read(1):
                return


main()
