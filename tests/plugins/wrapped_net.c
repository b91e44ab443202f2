/* Wraps our own plug-in (libnccl-net-slip.so, named by SLIP_WRAPPED_PLUGIN) for the tests of the loader, which takes
   the newest table of a library. Compiled for one version:
     PLUGIN_VERSION=8, 9, 10 or 11   exports this table only
     PLUGIN_VERSION=7                exports an old table only
     PLUGIN_VERSION=0                exports no table
     PLUGIN_HOLE                     the table has no isend
   It has the faults that the variable SLIP_PLUGIN_FAULT lists, read at each call:
     FUNCTION=fail       the function fails, for example isend=fail; close=fail: all functions that close or deregister
     init=fork           init forks a process and waits for its end
     connect=never, accept=never, isend=never, irecv=never, test=never     it never gets further
     listen=null, devices=0, devices=many, recvs=0     nonsense
     size=negative, size=huge, size=none, size=short   test reports a wrong length; short: one byte less
     comms=COUNT         connect and accept fail if the process has made so many connections with each of them
     max=BYTES           the maximum length of a message; version 8 has none
     cuda                the device takes GPU memory, which is host memory here, and dma-buf descriptors */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/net_plugin/nccl_net.h"
#include "wrapped_counts.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

#if PLUGIN_VERSION == 7
struct {
  const char* name;
} ncclNetPlugin_v7 = {"old"};
#elif PLUGIN_VERSION >= 8
typedef JOIN(net_table_v, PLUGIN_VERSION) table;
table JOIN(ncclNetPlugin_v, PLUGIN_VERSION);
#define exported JOIN(ncclNetPlugin_v, PLUGIN_VERSION)
#endif

#if PLUGIN_VERSION >= 8
/* What differs between the versions: parameters, and how they are passed on. */
typedef JOIN(net_properties_v, PLUGIN_VERSION) properties_type;
#if PLUGIN_VERSION == 8
typedef int size_type;
#else
typedef size_t size_type;
#endif
#if PLUGIN_VERSION >= 11
#define CONTEXT void *context,
#define PASS_CONTEXT ((struct context*)context)->inner,
#define INIT_PARAMETERS void **context, uint64_t id, net_config *config, net_logger log, net_profiler profiler
#define PASS_INIT &made->inner, id, config, log, profiler
#else
#define CONTEXT
#define PASS_CONTEXT
#endif
#if PLUGIN_VERSION == 10
#define CONFIG net_config *config,
#define PASS_CONFIG config,
#define INIT_PARAMETERS net_logger log, net_profiler profiler
#define PASS_INIT log, profiler
#else
#define CONFIG
#define PASS_CONFIG
#endif
#if PLUGIN_VERSION <= 9
#define INIT_PARAMETERS net_logger log
#define PASS_INIT log
#define PROFILED
#define PROFILED_PARTS
#define PASS_PROFILED
#else
#define PROFILED void *profiled,
#define PROFILED_PARTS void **profiled,
#define PASS_PROFILED profiled,
#endif

static table inner;
static net_logger logger;
__attribute__((visibility("default"))) wrapped_counts_type wrapped_counts;
static void count(int* number, int by) { __atomic_fetch_add(number, by, __ATOMIC_RELAXED); }

#if PLUGIN_VERSION >= 11
struct context {
  void* inner;
  uint64_t communicator;
};
#define NOTE_COMMUNICATOR(which) wrapped_counts.which = ((struct context*)context)->communicator
#else
#define NOTE_COMMUNICATOR(which) (void)0
#endif

/* The value of a fault, or null; a fault without a value has "". */
static const char* fault(const char* name) {
  const char* at = getenv("SLIP_PLUGIN_FAULT");
  const size_t length = strlen(name);
  for (; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    if (strncmp(at, name, length) != 0) continue;
    if (at[length] == '=') return at + length + 1;
    if (at[length] == '\0' || at[length] == ',') return at + length;
  }
  return NULL;
}

static int has(const char* name, const char* value) {
  const char* found = fault(name);
  return found && strncmp(found, value, strlen(value)) == 0;
}

static int fails(const char* name) {
  if (!has(name, "fail")) return 0;
  logger(NET_LOG_WARN, NET_LOG_OF_NET, __FILE__, __LINE__, "%s has an injected failure", name);
  return 1;
}

static net_result init(INIT_PARAMETERS) {
  logger = log;
  if (fails("init")) return NET_SYSTEM_ERROR;
  if (has("init", "fork")) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
  }
  count(&wrapped_counts.begun, 1);
#if PLUGIN_VERSION >= 11
  struct context* made = calloc(1, sizeof(*made));
  made->communicator = id;
  *context = made;
#endif
  return inner.init(PASS_INIT);
}

#if PLUGIN_VERSION >= 11
static net_result finalize(void* context) {
  count(&wrapped_counts.ended, 1);
  const net_result result = inner.finalize(((struct context*)context)->inner);
  free(context);
  return fails("finalize") ? NET_INTERNAL_ERROR : result;
}
#endif

static net_result devices(int* count) {
  if (fails("devices")) return NET_SYSTEM_ERROR;
  const net_result result = inner.devices(count);
  if (has("devices", "0")) *count = 0;
  if (has("devices", "many")) *count = 1 << 30;
  return result;
}

static net_result get_properties(int device, properties_type* properties) {
  if (fails("getProperties")) return NET_INTERNAL_ERROR;
  const net_result result = inner.get_properties(device, properties);
  if (has("recvs", "0")) properties->max_recvs = 0;
#if PLUGIN_VERSION >= 9
  if (fault("max")) properties->max_p2p_bytes = (size_t)atol(fault("max"));
#endif
  if (fault("cuda")) properties->ptr_support |= NET_PTR_CUDA | NET_PTR_DMABUF;
  return result;
}

static net_result listen_at(CONTEXT int device, void* handle, void** listener) {
  if (fails("listen")) return NET_SYSTEM_ERROR;
  if (has("listen", "null")) {
    *listener = NULL;
    return NET_SUCCESS;
  }
  NOTE_COMMUNICATOR(listening);
  return inner.listen(PASS_CONTEXT device, handle, listener);
}

/* Counts a connection that was made. True: there was one too many. */
static int exceeds_limit(int* made, void* comm) {
  if (!comm || !fault("comms") || ++*made <= atoi(fault("comms"))) return 0;
  logger(NET_LOG_WARN, NET_LOG_OF_NET, __FILE__, __LINE__, "no more than %d connections", atoi(fault("comms")));
  return 1;
}

static net_result connect_to(CONTEXT int device, CONFIG void* handle, void** sender, net_device_handle** on_device) {
  static int made;
  if (fails("connect")) return NET_SYSTEM_ERROR;
  *sender = NULL;
  if (has("connect", "never")) return NET_SUCCESS;
  NOTE_COMMUNICATOR(connecting);
  const net_result result = inner.connect(PASS_CONTEXT device, PASS_CONFIG handle, sender, on_device);
  return exceeds_limit(&made, *sender) ? NET_INVALID_USAGE : result;
}

static net_result accept_one(void* listener, void** receiver, net_device_handle** on_device) {
  static int made;
  if (fails("accept")) return NET_SYSTEM_ERROR;
  *receiver = NULL;
  if (has("accept", "never")) return NET_SUCCESS;
  const net_result result = inner.accept(listener, receiver, on_device);
  return exceeds_limit(&made, *receiver) ? NET_INVALID_USAGE : result;
}

static net_result close_send(void* sender) {
  const net_result result = inner.close_send(sender);
  return fails("close") ? NET_INTERNAL_ERROR : result;
}
static net_result close_recv(void* receiver) {
  const net_result result = inner.close_recv(receiver);
  return fails("close") ? NET_INTERNAL_ERROR : result;
}
static net_result close_listen(void* listener) {
  const net_result result = inner.close_listen(listener);
  return fails("close") ? NET_INTERNAL_ERROR : result;
}
static net_result dereg_mr(void* comm, void* memory) {
  count(&wrapped_counts.deregistered, 1);
  const net_result result = inner.dereg_mr(comm, memory);
  return fails("close") ? NET_INTERNAL_ERROR : result;
}

static net_result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) {
  if (fails("regMr")) return NET_SYSTEM_ERROR;
  count(&wrapped_counts.registered, 1);
  return inner.reg_mr(comm, data, bytes, type == NET_PTR_CUDA && fault("cuda") ? NET_PTR_HOST : type, memory);
}

/* The descriptor and the offset are written to the bytes, so that the test sees them. */
static net_result reg_mr_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                                 void** memory) {
  snprintf(data, bytes, "dma-buf %d at %d, type %d", fd, (int)offset, type);
  return inner.reg_mr(comm, data, bytes, NET_PTR_HOST, memory);
}

static net_result isend(void* sender, void* data, size_type bytes, int tag, void* memory, PROFILED void** request) {
  if (fails("isend")) return NET_SYSTEM_ERROR;
  *request = NULL;
  if (has("isend", "never")) return NET_SUCCESS;
  return inner.isend(sender, data, bytes, tag, memory, PASS_PROFILED request);
}

static net_result irecv(void* receiver, int count, void** data, size_type* bytes, int* tags, void** memories,
                        PROFILED_PARTS void** request) {
  if (fails("irecv")) return NET_INTERNAL_ERROR;
  *request = NULL;
  if (has("irecv", "never")) return NET_SUCCESS;
  return inner.irecv(receiver, count, data, bytes, tags, memories, PASS_PROFILED request);
}

/* A flush whose request is done at the second test. */
static struct flush { int used, tests; } flushes[8];

static net_result iflush(void* receiver, int count, void** data, int* bytes, void** memories, void** request) {
  if (fails("iflush")) return NET_SYSTEM_ERROR;
  if (!fault("cuda")) return inner.iflush(receiver, count, data, bytes, memories, request);
  *request = NULL;
  for (int i = 0; i < 8 && !*request; ++i) {
    if (flushes[i].used) continue;
    flushes[i] = (struct flush){1, 0};
    *request = &flushes[i];
  }
  return NET_SUCCESS;
}

static net_result test(void* request, int* done, int* bytes) {
  *done = 0;
  if (fails("test")) return NET_REMOTE_ERROR;
  if (has("test", "never")) return NET_SUCCESS;
  for (int i = 0; i < 8; ++i) {
    if (request != &flushes[i]) continue;
    *done = ++flushes[i].tests == 2;
    flushes[i].used = !*done;
    return NET_SUCCESS;
  }
  const net_result result = inner.test(request, done, has("size", "none") ? NULL : bytes);
  if (*done && has("size", "negative")) bytes[0] = -5;
  if (*done && has("size", "huge")) bytes[0] = 1 << 30;
  if (*done && has("size", "short") && bytes[0] > 0) --bytes[0];
  return result;
}
#endif

#if PLUGIN_VERSION >= 8
__attribute__((constructor)) static void wrap(void) {
  const char* path = getenv("SLIP_WRAPPED_PLUGIN");
  void* library = dlopen(path ? path : SLIP_WRAPPED_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  const table* found = library ? dlsym(library, "ncclNetPlugin_v" TEXT(PLUGIN_VERSION)) : NULL;
  if (!found) {
    fprintf(stderr, "the wrapped plug-in cannot be loaded: %s\n", dlerror());
    return;
  }
  exported = *found;
  exported.name = "Wrapped";
  inner = *found;
  exported.init = init;
  exported.devices = devices;
  exported.get_properties = get_properties;
  exported.listen = listen_at;
  exported.connect = connect_to;
  exported.accept = accept_one;
  exported.reg_mr = reg_mr;
  exported.reg_mr_dma_buf = reg_mr_dma_buf;
  exported.dereg_mr = dereg_mr;
  exported.isend = isend;
  exported.irecv = irecv;
  exported.iflush = iflush;
  exported.test = test;
  exported.close_send = close_send;
  exported.close_recv = close_recv;
  exported.close_listen = close_listen;
#if PLUGIN_VERSION >= 11
  exported.finalize = finalize;
#endif
#ifdef PLUGIN_HOLE
  exported.isend = NULL;
#endif
}
#endif
