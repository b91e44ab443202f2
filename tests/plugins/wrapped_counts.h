/* What the plug-ins of wrapped_net.c count, in the variable `wrapped_counts` of the library. */
#ifndef SLIP_TESTS_WRAPPED_COUNTS_H
#define SLIP_TESTS_WRAPPED_COUNTS_H

#include <stdint.h>

typedef struct {
  int registered, deregistered; /* calls of regMr and deregMr */
  int begun, ended;             /* calls of init, and of finalize in version 11 */
  /* Version 11: the number of the communicator in the last listen and connect. */
  uint64_t listening, connecting;
} wrapped_counts_type;

#endif
