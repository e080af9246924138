/*
 * For a program of which `allocwall count` counts the allocations: call allocwall_unit() once for each unit of work (a
 * request, a row, a frame). The counts are then also given per unit. Without `allocwall count` the call does nothing.
 *
 * Nothing has to be linked. Needs GCC or Clang; a program that is not position-independent has to be compiled with
 * -fPIC or -fPIE.
 */
#ifndef ALLOCWALL_MARK_H
#define ALLOCWALL_MARK_H

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((weak)) void allocwall_mark(void);

static inline void allocwall_unit(void) {
    if (allocwall_mark)
        allocwall_mark();
}

#ifdef __cplusplus
}
#endif

#endif
