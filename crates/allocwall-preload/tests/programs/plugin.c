/* A library that is loaded and unloaded: it allocates at load, in a call, and for a thread-local. */
#include <stdlib.h>
#include <string.h>

static __thread char *own;
static char *loaded;

__attribute__((constructor)) static void load(void) {
    loaded = malloc(1000);
}

__attribute__((destructor)) static void unload(void) {
    free(loaded);
}

/* The caller frees it. */
char *plugin(size_t size) {
    free(own);
    own = malloc(64);
    strcpy(own, "own");
    char *block = malloc(size);
    memset(block, own[0], size);
    free(own);
    own = NULL;
    return block;
}
