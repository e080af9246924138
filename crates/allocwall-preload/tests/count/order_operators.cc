/* order.c with the operators of C++ in place of malloc and free. */
#include <new>

#define MAKE ::operator new
#define DROP ::operator delete
#include "order.c"
