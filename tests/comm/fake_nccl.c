// A library with NCCL's names that moves no data: tests decide what its functions return. Built as a module, see
// cmake/tests.cmake; tests find the variables with dlsym.
#include <stddef.h>
#include <string.h>

int fake_version = 22809;
int fake_result = 0;          // of all calls
int fake_state = 0;           // what ncclCommGetAsyncError reports
int fake_polls_left = 0;      // so many polls report ncclInProgress (7) first
int fake_aborts = 0, fake_destroyed = 0, fake_finalized = 0;
int fake_splits = 0, fake_revoked = 0;
int fake_comm, fake_child;
int fake_comm_blocks = -1, fake_child_blocks = -1;  // what their configs say

typedef struct {
  char bytes[128];
} ncclUniqueId;

typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking;
} Config;

static int read_config(const Config* config, int* blocks) {
  if (!config || config->size < sizeof(Config) || config->magic != 0xcafebeef) return 4;
  *blocks = config->blocking;
  return 0;
}
static int blocks(const void* comm) { return comm == &fake_child ? fake_child_blocks : fake_comm_blocks; }

int ncclGetVersion(int* version) {
  *version = fake_version;
  return 0;
}
const char* ncclGetErrorString(int result) { return result == 2 ? "unhandled system error" : "some error"; }
const char* ncclGetLastError(void* comm) {
  (void)comm;
  return "the last error\n";
}
int ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 1, sizeof(*id));
  return 0;
}
int ncclCommInitRankConfig(void** comm, int nranks, ncclUniqueId id, int rank, Config* config) {
  (void)nranks, (void)id, (void)rank;
  if (read_config(config, &fake_comm_blocks) != 0) return 4;
  *comm = &fake_comm;
  return fake_comm_blocks ? 0 : 7;
}
int ncclCommSplit(void* comm, int color, int key, void** child, Config* config) {
  (void)color, (void)key;
  if (read_config(config, &fake_child_blocks) != 0) return 4;
  ++fake_splits;
  *child = &fake_child;
  return blocks(comm) ? 0 : 7; /* the parent decides */
}
int ncclCommRevoke(void* comm, int flags) {
  (void)comm, (void)flags;
  __atomic_store_n(&fake_revoked, 1, __ATOMIC_RELEASE);
  return 0;
}
int ncclCommFinalize(void* comm) {
  __atomic_add_fetch(&fake_finalized, 1, __ATOMIC_SEQ_CST);
  return blocks(comm) ? 0 : 7;
}
int ncclCommDestroy(void* comm) {
  (void)comm;
  __atomic_add_fetch(&fake_destroyed, 1, __ATOMIC_SEQ_CST);
  return 0;
}
int ncclCommAbort(void* comm) {
  (void)comm;
  __atomic_add_fetch(&fake_aborts, 1, __ATOMIC_SEQ_CST);
  return 0;
}
int ncclCommGetAsyncError(void* comm, int* state) {
  (void)comm;
  *state = fake_polls_left > 0 ? 7 : fake_state;
  if (fake_polls_left > 0) --fake_polls_left;
  return 0;
}

#define FAKE_CALL(name) \
  int name(void) { return fake_result; }
FAKE_CALL(ncclAllReduce)
FAKE_CALL(ncclReduce)
FAKE_CALL(ncclBroadcast)
FAKE_CALL(ncclAllGather)
FAKE_CALL(ncclReduceScatter)
FAKE_CALL(ncclSend)
FAKE_CALL(ncclRecv)
FAKE_CALL(ncclGroupStart)
FAKE_CALL(ncclGroupEnd)
FAKE_CALL(ncclRedOpCreatePreMulSum)
FAKE_CALL(ncclRedOpDestroy)
