/* Calls before the shim's constructor: of a library that the program needs, and of the program's preinit_array. */
#include "own.h"

struct own *early_own(void);

static void before(int argc, char **argv) {
    works = argc > 1 && strcmp(argv[1], "work") == 0;
    for (int i = 0; i < 10; i++)
        give(take(5000));
}
