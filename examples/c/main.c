/* Runs a compiled model in a workspace of its own, the way a program with several threads would.
 *
 *     cuvil compile --model models/digits/digits.onnx --target host --output libinfer.a
 *     cc -I. examples/c/main.c libinfer.a -lm -o classify && ./classify
 */
#include <stdio.h>

#include "libinfer.h"

static unsigned char workspace[DIGITS_WORKSPACE_BYTES] __attribute__((aligned(64)));

int main(void) {
    static float image[DIGITS_IMAGE_ELEMENTS];
    float logits[DIGITS_LOGITS_ELEMENTS];
    for (int row = 4; row < 24; row++) { /* a vertical stroke */
        for (int column = 13; column < 16; column++) image[row * 28 + column] = 1.0f;
    }
    const int status = digits_run(workspace, sizeof workspace, image, logits);
    if (status != CUVIL_OK) return status;
    int best = 0;
    for (int digit = 1; digit < DIGITS_LOGITS_ELEMENTS; digit++) {
        if (logits[digit] > logits[best]) best = digit;
    }
    printf("digit %d\n", best);
    return 0;
}
