/* The C library's allocator in a file of its own, with only two of the operators of C++: the plain new and delete. */
#include <stddef.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

void *malloc(size_t size) {
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return __libc_memalign(alignment, size);
}

void free(void *block) {
    __libc_free(block);
}

void *_Znwm(size_t size) {
    return __libc_malloc(size);
}

void _ZdlPv(void *block) {
    __libc_free(block);
}
