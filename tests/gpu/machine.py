"""machine.py - where a bare machine has what the scripts of this folder use."""
import glob
import os
import shutil
import sys


def find_cublaslt():
    """The toolkit's, or the one that PyTorch brought; else the dynamic linker's affair."""
    places = ["/usr/local/cuda*/lib64/libcublasLt.so.1[23]"]
    for folder in sys.path + ["/usr/local/lib/python3*/*-packages", "/usr/lib/python3/dist-packages", "/opt/*/lib/python3*/*-packages"]:
        places.append(f"{folder}/nvidia/*/lib/libcublasLt.so.1[23]")
    for place in places:
        if found := sorted(glob.glob(place)):
            return found[-1]
    return "libcublasLt.so.13"


def find_tool(name):
    """A program of the toolkit, in PATH or its usual place; None: it is not here."""
    return shutil.which(name) or next((p for p in sorted(glob.glob(f"/usr/local/cuda*/bin/{name}"), reverse=True) if os.access(p, os.X_OK)), None)
