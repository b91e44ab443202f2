/* A program made for NCCL, in C: it includes nccl.h, links libnccl.so.2, and knows nothing of Slipstream. It calls
 * every collective with every data type over host memory and checks every element.
 *
 *   client threads N           N ranks as threads of this process
 *   client group N             N ranks, all calls made by one thread in groups
 *   client process ID_PIPE     this process is rank SLIP_RANK of SLIP_NRANKS (slip launch); the id passes through pipes of this name
 *   client lost ID_PIPE        the same, but the last rank ends without a word, and the others must get an error
 *
 * Exit status 0: every element was right. */
#include <nccl.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(call)                                                                                                   \
  do {                                                                                                                \
    ncclResult_t result_ = (call);                                                                                    \
    if (result_ != ncclSuccess) {                                                                                     \
      fprintf(stderr, "line %d: %s: %s: %s\n", __LINE__, #call, ncclGetErrorString(result_), ncclGetLastError(NULL)); \
      exit(1);                                                                                                        \
    }                                                                                                                 \
  } while (0)

enum { MAX_RANKS = 8, MAX_ELEMENTS = 70001 };

static size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

/* The bits of a small number of 0 and more in a float type with these numbers of exponent and mantissa bits. The client
 * uses only numbers that every type holds exactly. */
static uint32_t float_bits(double value, int exponent_bits, int mantissa_bits) {
  int exponent = 0;
  if (value == 0) return 0;
  while (value >= 2) {
    value /= 2;
    ++exponent;
  }
  while (value < 1) {
    value *= 2;
    --exponent;
  }
  const int bias = (1 << (exponent_bits - 1)) - 1;
  return ((uint32_t)(exponent + bias) << mantissa_bits) | (uint32_t)((value - 1) * (1 << mantissa_bits));
}

static void put(void* data, size_t i, ncclDataType_t type, double value) {
  switch (type) {
    case ncclInt8: ((int8_t*)data)[i] = (int8_t)value; break;
    case ncclUint8: ((uint8_t*)data)[i] = (uint8_t)value; break;
    case ncclInt32: ((int32_t*)data)[i] = (int32_t)value; break;
    case ncclUint32: ((uint32_t*)data)[i] = (uint32_t)value; break;
    case ncclInt64: ((int64_t*)data)[i] = (int64_t)value; break;
    case ncclUint64: ((uint64_t*)data)[i] = (uint64_t)value; break;
    case ncclFloat16: ((uint16_t*)data)[i] = (uint16_t)float_bits(value, 5, 10); break;
    case ncclBfloat16: ((uint16_t*)data)[i] = (uint16_t)float_bits(value, 8, 7); break;
    case ncclFloat8e4m3: ((uint8_t*)data)[i] = (uint8_t)float_bits(value, 4, 3); break;
    case ncclFloat8e5m2: ((uint8_t*)data)[i] = (uint8_t)float_bits(value, 5, 2); break;
    case ncclFloat32: ((float*)data)[i] = (float)value; break;
    default: ((double*)data)[i] = value; break;
  }
}

/* What rank `rank` has at element i: 1 or 2, so that sums and products of 4 ranks are exact in every type. */
static double input(int rank, size_t i) { return (double)((i + (size_t)rank) % 2 + 1); }

static double reduced(ncclRedOp_t op, int n, size_t i) {
  double result = input(0, i);
  for (int rank = 1; rank < n; ++rank) {
    const double next = input(rank, i);
    if (op == ncclSum || op == ncclAvg) result += next;
    else if (op == ncclProd) result *= next;
    else if (op == ncclMax) result = next > result ? next : result;
    else result = next < result ? next : result;
  }
  return result;
}

struct rank {
  ncclComm_t comm;
  int rank, n;
  unsigned char *from, *to, *expected;
};

static void fill(struct rank* r, ncclDataType_t type, size_t count) {
  memset(r->to, 0x55, count * size_of(type));
  for (size_t i = 0; i < count; ++i) put(r->from, i, type, input(r->rank, i));
}

static void expect(const struct rank* r, const char* what, ncclDataType_t type, size_t count) {
  if (memcmp(r->to, r->expected, count * size_of(type)) == 0) return;
  size_t i = 0;
  while (r->to[i] == r->expected[i]) ++i;
  fprintf(stderr, "%s, rank %d of %d, datatype %d: %zu elements, byte %zu is %d and not %d\n", what, r->rank, r->n,
          type, count, i, r->to[i], r->expected[i]);
  exit(1);
}

/* In each check the ranks of this thread make their calls in one group. With one rank per thread the group has one
 * call. */
struct ranks {
  struct rank* all;
  int count, n;
};
#define EACH(r) for (struct rank* r = ranks->all; r < ranks->all + ranks->count; ++r)

static void check_reductions(struct ranks* ranks, ncclDataType_t type, size_t count) {
  const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin};
  const int n = ranks->n, last = n - 1;
  for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); ++o) {
    const ncclRedOp_t op = ops[o];
    EACH(r) fill(r, type, count);
    CHECK(ncclGroupStart());
    EACH(r) CHECK(ncclAllReduce(r->from, r->to, count, type, op, r->comm, NULL));
    CHECK(ncclGroupEnd());
    EACH(r) {
      for (size_t i = 0; i < count; ++i) put(r->expected, i, type, reduced(op, n, i));
      expect(r, "all_reduce", type, count);
    }
    CHECK(ncclGroupStart());
    EACH(r) CHECK(ncclReduce(r->from, r->rank == last ? r->to : NULL, count, type, op, last, r->comm, NULL));
    CHECK(ncclGroupEnd());
    EACH(r) if (r->rank == last) expect(r, "reduce", type, count);
    EACH(r) fill(r, type, count * (size_t)n);
    CHECK(ncclGroupStart());
    EACH(r) CHECK(ncclReduceScatter(r->from, r->to, count, type, op, r->comm, NULL));
    CHECK(ncclGroupEnd());
    EACH(r) {
      for (size_t i = 0; i < count; ++i) put(r->expected, i, type, reduced(op, n, (size_t)r->rank * count + i));
      expect(r, "reduce_scatter", type, count);
    }
  }
}

static void check_movements(struct ranks* ranks, ncclDataType_t type, size_t count) {
  const int n = ranks->n;
  const size_t size = size_of(type), block = count * size;
  EACH(r) fill(r, type, count);
  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclBroadcast(r->rank == 1 ? r->from : NULL, r->to, count, type, 1, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) {
    for (size_t i = 0; i < count; ++i) put(r->expected, i, type, input(1, i));
    expect(r, "broadcast", type, count);
  }
  EACH(r) memcpy(r->to, r->from, block);
  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclBcast(r->to, count, type, 1, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) expect(r, "bcast", type, count);

  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclAllGather(r->from, r->to, count, type, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) {
    for (size_t i = 0; i < count * (size_t)n; ++i) put(r->expected, i, type, input((int)(i / count), i % count));
    expect(r, "all_gather", type, count * (size_t)n);
    memcpy(r->to + (size_t)r->rank * block, r->from, block); /* in place */
  }
  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclAllGather(r->to + (size_t)r->rank * block, r->to, count, type, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) expect(r, "all_gather in place", type, count * (size_t)n);

  EACH(r) memset(r->to, 0x55, block * (size_t)n);
  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclGather(r->from, r->rank == 0 ? r->to : NULL, count, type, 0, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) if (r->rank == 0) expect(r, "gather", type, count * (size_t)n);

  EACH(r) fill(r, type, count * (size_t)n);
  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclScatter(r->rank == 0 ? r->from : NULL, r->to, count, type, 0, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) {
    for (size_t i = 0; i < count; ++i) put(r->expected, i, type, input(0, (size_t)r->rank * count + i));
    expect(r, "scatter", type, count);
  }
  CHECK(ncclGroupStart());
  EACH(r) CHECK(ncclAlltoAll(r->from, r->to, count, type, r->comm, NULL));
  CHECK(ncclGroupEnd());
  EACH(r) {
    for (size_t i = 0; i < count * (size_t)n; ++i)
      put(r->expected, i, type, input((int)(i / count), (size_t)r->rank * count + i % count));
    expect(r, "all_to_all", type, count * (size_t)n);
  }
}

/* Every rank sends to the next one and receives from the one before. */
static void check_messages(struct ranks* ranks, ncclDataType_t type, size_t count) {
  const int n = ranks->n;
  EACH(r) fill(r, type, count);
  CHECK(ncclGroupStart());
  EACH(r) {
    CHECK(ncclSend(r->from, count, type, (r->rank + 1) % n, r->comm, NULL));
    CHECK(ncclRecv(r->to, count, type, (r->rank + n - 1) % n, r->comm, NULL));
  }
  CHECK(ncclGroupEnd());
  EACH(r) {
    for (size_t i = 0; i < count; ++i) put(r->expected, i, type, input((r->rank + n - 1) % n, i));
    expect(r, "send and recv", type, count);
  }
}

static void check_all(struct ranks* ranks) {
  const size_t counts[] = {1, 7, 1000, MAX_ELEMENTS};
  EACH(r) {
    const size_t bytes = (size_t)MAX_ELEMENTS * 8 * (size_t)ranks->n;
    int count = 0, rank = 0;
    CHECK(ncclCommCount(r->comm, &count));
    CHECK(ncclCommUserRank(r->comm, &rank));
    if (count != r->n || rank != r->rank) {
      fprintf(stderr, "rank %d of %d, not %d of %d\n", rank, count, r->rank, r->n);
      exit(1);
    }
    CHECK(ncclMemAlloc((void**)&r->from, bytes));
    r->to = malloc(bytes);
    r->expected = malloc(bytes);
  }
  for (int type = 0; type < ncclNumTypes; ++type) {
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); ++c) {
      check_reductions(ranks, (ncclDataType_t)type, counts[c]);
      check_movements(ranks, (ncclDataType_t)type, counts[c]);
      check_messages(ranks, (ncclDataType_t)type, counts[c]);
    }
  }
  EACH(r) {
    CHECK(ncclMemFree(r->from));
    free(r->to);
    free(r->expected);
  }
}

struct thread {
  struct rank rank;
  ncclUniqueId id;
};

static void* run_rank(void* argument) {
  struct thread* own = argument;
  struct ranks ranks = {&own->rank, 1, own->rank.n};
  CHECK(ncclCommInitRank(&own->rank.comm, own->rank.n, own->id, own->rank.rank));
  check_all(&ranks);
  CHECK(ncclCommFinalize(own->rank.comm));
  CHECK(ncclCommDestroy(own->rank.comm));
  return NULL;
}

static void run_threads(int n) {
  struct thread threads[MAX_RANKS];
  pthread_t handles[MAX_RANKS];
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  for (int i = 0; i < n; ++i) {
    threads[i] = (struct thread){{NULL, i, n, NULL, NULL, NULL}, id};
    pthread_create(&handles[i], NULL, run_rank, &threads[i]);
  }
  for (int i = 0; i < n; ++i) pthread_join(handles[i], NULL);
}

static void run_group(int n) {
  struct rank all[MAX_RANKS];
  ncclComm_t comms[MAX_RANKS];
  struct ranks ranks = {all, n, n};
  CHECK(ncclCommInitAll(comms, n, NULL));
  for (int i = 0; i < n; ++i) all[i] = (struct rank){comms[i], i, n, NULL, NULL, NULL};
  check_all(&ranks);
  for (int i = 0; i < n; ++i) CHECK(ncclCommDestroy(comms[i]));
}

/* Rank 0 passes the id to each other rank through a named pipe. Opening it waits for the other side; the alarm ends a
 * process whose other side never comes. */
static void share_id(const char* path, int rank, int n, ncclUniqueId* id) {
  char pipe[4096];
  alarm(60);
  if (rank == 0) CHECK(ncclGetUniqueId(id));
  for (int other = rank == 0 ? 1 : rank; other < (rank == 0 ? n : rank + 1); ++other) {
    snprintf(pipe, sizeof(pipe), "%s.%d", path, other);
    mkfifo(pipe, 0600); /* whichever side comes first makes it */
    const int file = open(pipe, rank == 0 ? O_WRONLY : O_RDONLY);
    const ssize_t bytes = rank == 0 ? write(file, id, sizeof(*id)) : read(file, id, sizeof(*id));
    if (bytes != (ssize_t)sizeof(*id)) {
      fprintf(stderr, "rank %d: %zd bytes of the id passed through %s\n", rank, bytes, pipe);
      exit(2);
    }
    close(file);
  }
  alarm(0);
}

/* The last rank ends after init. The others wait for it in a call, which must fail. */
static void lose_rank(struct thread* own) {
  int value = 1;
  ncclResult_t result, state = ncclSuccess;
  CHECK(ncclCommInitRank(&own->rank.comm, own->rank.n, own->id, own->rank.rank));
  CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, own->rank.comm, NULL));
  if (own->rank.rank == own->rank.n - 1) _exit(0);
  result = ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, own->rank.comm, NULL);
  CHECK(ncclCommGetAsyncError(own->rank.comm, &state));
  if (result != ncclRemoteError || state != ncclRemoteError) {
    fprintf(stderr, "results %d and %d, not ncclRemoteError\n", result, state);
    exit(1);
  }
  printf("rank %d: %s\n", own->rank.rank, ncclGetLastError(own->rank.comm));
  CHECK(ncclCommAbort(own->rank.comm));
}

int main(int argc, char** argv) {
  int version = 0;
  CHECK(ncclGetVersion(&version));
  if (argc != 3 || version != NCCL_VERSION_CODE) return 2;
  if (strcmp(argv[1], "process") == 0 || strcmp(argv[1], "lost") == 0) {
    const char *rank = getenv("SLIP_RANK"), *n = getenv("SLIP_NRANKS");
    struct thread own;
    if (!rank || !n) return 2;
    own.rank = (struct rank){NULL, atoi(rank), atoi(n), NULL, NULL, NULL};
    share_id(argv[2], own.rank.rank, own.rank.n, &own.id);
    if (strcmp(argv[1], "lost") == 0) {
      lose_rank(&own);
      return 0;
    }
    run_rank(&own);
  } else {
    const int n = atoi(argv[2]);
    if (n < 2 || n > MAX_RANKS) return 2;
    if (strcmp(argv[1], "threads") == 0) run_threads(n);
    else run_group(n);
  }
  puts("all elements are right");
  return 0;
}
