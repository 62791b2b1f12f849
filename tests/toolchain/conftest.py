"""A small library in C and assembler with what generated code uses: vectors, incbin, math.h."""

from __future__ import annotations

from pathlib import Path

import pytest

LIBRARY_C = r"""
#include <math.h>
#include "api.h"

typedef float f32x8 __attribute__((vector_size(32), aligned(4)));
extern const unsigned char weights[] __attribute__((visibility("hidden")));
__asm__(".section .rodata\ninline_bytes: .incbin \"weights.bin\"\n.text\n");

static int hidden_helper(int i) { return weights[i] + SHIFT; }

API float dot(const float *a, const float *b, int n) {
    f32x8 sum = {0};
    for (int i = 0; i < n; i += 8) sum += *(const f32x8 *)(a + i) * *(const f32x8 *)(b + i);
    float total = 0;
    for (int i = 0; i < 8; i++) total += sum[i];
    return total;
}
API float root(float x) { return sqrtf(x) + expf(0.0f * x); }
API int weight(int i) { return hidden_helper(i); }
API const char *source(void) { return __FILE__; }
API const char *header(void) { return HEADER_FILE; }
"""
WEIGHTS_S = r"""
#define NAME weights
.section .rodata
.balign 64
.globl NAME
.hidden NAME
NAME: .incbin "weights.bin"
"""
API_H = r"""
#define API __attribute__((visibility("default")))
static const char *const HEADER_FILE = __FILE__;
"""
MAIN_C = r"""
#include <stdio.h>
#include <string.h>
float dot(const float *, const float *, int);
int weight(int);
int main(int argc, char **argv) {
    char line[16] = "";
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (!fgets(line, sizeof line, stdin)) return 9;
    printf("%s %g %d %d\n", argv[argc - 1], (double)dot(a, a, 8), weight(1), (int)strlen(line));
    return 3;
}
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with library.c, weights.S, main.c, and a folder include with api.h and weights.bin."""
    return write_sources(tmp_path / "sources")


def write_sources(folder: Path) -> Path:
    (folder / "include").mkdir(parents=True)
    for name, text in (
        ("library.c", LIBRARY_C),
        ("weights.S", WEIGHTS_S),
        ("main.c", MAIN_C),
        ("include/api.h", API_H),
    ):
        (folder / name).write_text(text)
    (folder / "include" / "weights.bin").write_bytes(bytes(range(10, 20)))
    return folder
