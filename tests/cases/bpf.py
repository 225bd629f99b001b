"""Classic BPF as the kernel reads it: what a filter of system calls answers."""

import struct

from untrusted.inside import confinement, syscalls


def answer(program, machine, number, arguments=(0,) * 6):
    """What the filter returns for a call with these arguments."""
    data = struct.pack("=IIQ6Q", number, syscalls.AUDIT_ARCH[machine], 0, *arguments)
    lines = list(struct.iter_unpack("HBBI", program))
    position, word = 0, 0
    while True:
        code, if_true, if_false, value = lines[position]
        position += 1
        if code == confinement.BPF_RETURN:
            return value
        elif code == confinement.BPF_LOAD:
            (word,) = struct.unpack_from("=I", data, value)
        elif code == confinement.BPF_AND:
            word &= value
        elif code == confinement.BPF_JUMP:
            position += value
        else:
            holds = {
                confinement.BPF_JUMP_EQUAL: word == value,
                confinement.BPF_JUMP_AT_LEAST: word >= value,
            }[code]
            position += if_true if holds else if_false
