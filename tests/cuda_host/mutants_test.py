#!/usr/bin/env python3
"""mutants_test.py - mistakes that a GPU would forgive for a long time, planted into our own kernels one by one: the tests of the
emulation find each of them. What is planted is the text that stands in the file today, so that a test that finds nothing any more, or
a place that has gone, fails here."""
import os
import subprocess
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.path.relpath(Path(os.environ.get("BUILD", TOP / "build")).resolve(), TOP))  # as the Makefile names its targets

# name: (file, test, what stands there, what is planted, what the test says)
MUTANTS = {
    "no_barrier": ("attention.cu", "attention", "__syncthreads(); /* q is there, and nobody is at the block before any more */", "",
                   "nothing between that orders them"),
    "barrier_of_one_warp": ("attention_mma.cu", "attention_mma", "    if (share == 1)\n        __syncwarp();",
                            "    if (share >= 1)\n        __syncwarp();", "nothing between that orders them"),
    "shared_too_small": ("attention.cu", "attention", "(size_t)(2 * a.kv.head_dim + BLOCK) * sizeof(float)",
                         "(size_t)(2 * a.kv.head_dim + BLOCK - 1) * sizeof(float)", "was written at byte"),
    "wrong_page": ("attention.cu", "attention", "(size_t)pages[block * BLOCK_PAGES + column / PAGE]",
                   "(size_t)pages[block * BLOCK_PAGES + column / PAGE / 2]", "error: Failure!"),
    "wrong_page_written": ("kv.cu", "attention", "rows.pages[rows.table[row] + pos / PAGE]", "rows.pages[rows.table[row]]", "error: Failure!"),
    "no_event": ("backend.cu", "backend", "    if (backend_ready(k) && e)\n        backend_fine(k, cudaStreamWaitEvent(",
                 "    if (backend_ready(k) && e && !e)\n        backend_fine(k, cudaStreamWaitEvent(", "error: Failure!"),
    "weights_not_awaited": ("load.cu", "backend", "k->stream[KERNELS_COMPUTE], k->there[place], 0)", "k->stream[KERNELS_OUT], k->there[place], 0)",
                            "error: Failure!"),
    "place_overwritten": ("load.cu", "backend", "backend_fine(k, cudaStreamWaitEvent(k->bringing, k->left[place], 0), \"waiting for an event\") &&", "",
                          "error: Failure!"),
    "kernel_before_not_awaited": ("linear.cu", "linear", "    wait_for_earlier();\n    struct part part", "    struct part part",
                                  "the thread ends without having waited for the kernels before its own"),
    "ring_not_awaited": ("linear.cu", "linear", "copy_async_wait<stages - 2>();", "copy_async_wait<stages - 1>();",
                         "copies by cp.async that it never waited for"),
    "ring_of_one_lane": ("linear.cu", "linear", "__syncwarp(); /* record i is there, and the place of i - 1 is free */", "",
                         "nothing between that orders them"),
    "string_overlaps": ("split.cu", "split", "int at = (int)(used[k] % 32) +", "int at =", "error: Failure!"),
    "copied_over": ("halves.cu", "tiles", """            __syncthreads(); /* step s is there, and the stage of s - 1 is free */
            copy_w(s + stages - 1);
            copy_x(s + stages - 1);
""", """            copy_w(s + stages - 1);
            copy_x(s + stages - 1);
            __syncthreads();
""", "nothing between that orders them"),
    "copy_not_awaited": ("halves.cu", "library", "copy_async_wait<stages - 2>();", "copy_async_wait<stages - 1>();", "nothing between that orders them"),
}


class Planted(unittest.TestCase):
    def test_all_are_found(self):
        (TOP / BUILD / "mutants").mkdir(parents=True, exist_ok=True)
        for name, (file, test, there, planted, said) in MUTANTS.items():
            with self.subTest(name):
                text = (TOP / "kernels" / "cuda" / file).read_text()
                self.assertEqual(text.count(there), 1, "what was to be replaced is not there any more")
                (TOP / BUILD / "mutants" / f"{name}.cu").write_text(text.replace(there, planted))
                subprocess.run(["make", "--no-print-directory", "CUDA=0", f"BUILD={BUILD}", f"{BUILD}/mutants/{name}",
                                f"MUTANT_OF=kernels/cuda/{file}", f"MUTANT_TEST={test}"], cwd=TOP, check=True, capture_output=True,
                               env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))})
                done = subprocess.run([TOP / BUILD / "mutants" / name], capture_output=True, text=True, timeout=600)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(said, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
