/* A program of C that loads and unloads a plugin of C++. The third argument is the plugin. */
#include "own.h"
#include <dlfcn.h>

int main(int argc, char **argv) {
    begin(argc, argv);
    CHECK(argc > 2);
    for (int i = 0; i < 100; i++) {
        void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            FAIL("%s\n", dlerror());
        int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
        CHECK(plugin && plugin(works) == 0);
        if (works) {
            own_size(100), own_size(100), own_size(64);
            ADD(aligned, 1);
            ADD(frees, 3);
            ADD(failed, 1);
        }
        dlclose(library);
    }
    print_own();
    return 0;
}
