#include "early.h"

__attribute__((constructor)) static void early(int argc, char **argv) {
    before(argc, argv);
}

struct own *early_own(void) {
    return &own;
}
