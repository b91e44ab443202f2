/* The C interface of NCCL's network plug-ins, versions 8 to 11. A plug-in is a shared library. For each version that it
   supports, it exports one table of functions: ncclNetPlugin_v8 to ncclNetPlugin_v11. The layouts here are those of
   NCCL; the names of the fields are NCCL's in snake case. Used by our loader, by our own plug-in (src/nccl_net) and by
   the plug-ins of the tests.

   Rules for all versions. A connection carries messages in one direction. connect() and accept() do not wait. As long
   as the peer has not made its call, they set the connection to null, and the caller calls them again. isend() and
   irecv() set the request to null if they cannot start; the caller calls them again, too. test() makes progress; when
   it sets `done`, the request is free. Sends match receives in the order of their posting; tags choose among the parts
   of one receive only. */
#ifndef SLIP_TRANSPORT_NET_PLUGIN_NCCL_NET_H
#define SLIP_TRANSPORT_NET_PLUGIN_NCCL_NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  NET_HANDLE_BYTES = 128,   /* what listen() writes for the peer's connect() */
  NET_MAX_REQUESTS = 32,    /* of one connection at the same time; a sender has as many for each part of a receive */
  NET_MAX_DEVS_PER_NIC = 4, /* physical devices of a virtual one */
  NET_TRAFFIC_CLASS_UNDEF = -1
};

/* Kinds of pointers for reg_mr(), and bits of ptr_support. */
enum { NET_PTR_HOST = 1, NET_PTR_CUDA = 2, NET_PTR_DMABUF = 4 };

/* Results: the values of ncclResult_t. */
typedef enum {
  NET_SUCCESS = 0,
  NET_UNHANDLED_CUDA_ERROR = 1,
  NET_SYSTEM_ERROR = 2,
  NET_INTERNAL_ERROR = 3,
  NET_INVALID_ARGUMENT = 4,
  NET_INVALID_USAGE = 5,
  NET_REMOTE_ERROR = 6,
  NET_IN_PROGRESS = 7
} net_result;

/* The logger that init() gets. `flags`: a bit for each subsystem. */
typedef enum {
  NET_LOG_NONE = 0,
  NET_LOG_VERSION = 1,
  NET_LOG_WARN = 2,
  NET_LOG_INFO = 3,
  NET_LOG_ABORT = 4,
  NET_LOG_TRACE = 5
} net_log_level;
enum { NET_LOG_OF_INIT = 1, NET_LOG_OF_NET = 16 };
typedef void (*net_logger)(net_log_level level, unsigned long flags, const char* file, int line, const char* format,
                           ...);
typedef net_result (*net_profiler)(void** event, int type, void* parent, int64_t plugin, void* data);

/* The reader of the received bytes: the host, or a GPU kernel that unpacks them (NET_DEVICE_UNPACK). */
typedef enum { NET_DEVICE_HOST = 0, NET_DEVICE_UNPACK = 1 } net_device_type;

typedef struct {
  net_device_type type;
  int version;
  void* handle;
  size_t size;
  int needs_proxy_progress;
} net_device_handle;

typedef struct {
  int ndevs;
  int devs[NET_MAX_DEVS_PER_NIC];
} net_virtual_device;

typedef struct {
  int traffic_class;
} net_config;

typedef struct {
  int32_t max_concurrent_peers, min_concurrent_peers, max_flows_per_peer, min_flows_per_peer;
} net_comm_attributes;

typedef struct {
  net_comm_attributes send, receive;
  uint32_t op, algorithm, protocol;
} net_attributes;

/* The plug-in owns the strings. They stay valid while it is loaded. */
typedef struct {
  char* name;
  char* pci_path; /* of the device in /sys; null for a virtual interface */
  uint64_t guid;
  int ptr_support;
  int reg_is_global; /* a registration serves all connections, not only its own */
  int speed;         /* Mbit/s */
  int port;
  float latency; /* us */
  int max_comms;
  int max_recvs; /* parts of one irecv() */
  net_device_type device_type;
  int device_version;
} net_properties_v8;

/* The fields of version 9, with which later versions begin. */
#define NET_PROPERTIES_V9                                          \
  char* name;                                                      \
  char* pci_path;                                                  \
  uint64_t guid;                                                   \
  int ptr_support;                                                 \
  int reg_is_global;                                               \
  int force_flush; /* flush after every receive into GPU memory */ \
  int speed;                                                       \
  int port;                                                        \
  float latency;                                                   \
  int max_comms;                                                   \
  int max_recvs;                                                   \
  net_device_type device_type;                                     \
  int device_version;                                              \
  net_virtual_device virtual_device;                               \
  size_t max_p2p_bytes; /* of one message */                       \
  size_t max_coll_bytes

typedef struct {
  NET_PROPERTIES_V9;
} net_properties_v9;

typedef net_properties_v9 net_properties_v10;

typedef struct {
  NET_PROPERTIES_V9;
  int max_multi_request_size;
} net_properties_v11;

/* The functions that all versions share, in two groups because the tables have others between them. */
#define NET_MEMORY_CALLS                                                                                \
  net_result (*accept)(void* listener, void** receiver, net_device_handle** on_device);                 \
  net_result (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** memory);                  \
  net_result (*reg_mr_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd, \
                               void** memory);                                                          \
  net_result (*dereg_mr)(void* comm, void* memory)
#define NET_CLOSING_CALLS                                                                                    \
  net_result (*iflush)(void* receiver, int parts, void** data, int* bytes, void** memories, void** request); \
  net_result (*test)(void* request, int* done, int* bytes);                                                  \
  net_result (*close_send)(void* sender);                                                                    \
  net_result (*close_recv)(void* receiver);                                                                  \
  net_result (*close_listen)(void* listener);                                                                \
  net_result (*get_device_mr)(void* comm, void* memory, void** on_device);                                   \
  net_result (*irecv_consumed)(void* receiver, int parts, void* request)

typedef struct {
  const char* name;
  net_result (*init)(net_logger logger);
  net_result (*devices)(int* count);
  net_result (*get_properties)(int device, net_properties_v8* properties);
  net_result (*listen)(int device, void* handle, void** listener);
  net_result (*connect)(int device, void* handle, void** sender, net_device_handle** on_device);
  NET_MEMORY_CALLS;
  net_result (*isend)(void* sender, void* data, int bytes, int tag, void* memory, void** request);
  net_result (*irecv)(void* receiver, int parts, void** data, int* bytes, int* tags, void** memories, void** request);
  NET_CLOSING_CALLS;
} net_table_v8;

/* Since 8: sizes of 64 bits, virtual devices. */
typedef struct {
  const char* name;
  net_result (*init)(net_logger logger);
  net_result (*devices)(int* count);
  net_result (*get_properties)(int device, net_properties_v9* properties);
  net_result (*listen)(int device, void* handle, void** listener);
  net_result (*connect)(int device, void* handle, void** sender, net_device_handle** on_device);
  NET_MEMORY_CALLS;
  net_result (*isend)(void* sender, void* data, size_t bytes, int tag, void* memory, void** request);
  net_result (*irecv)(void* receiver, int parts, void** data, size_t* bytes, int* tags, void** memories,
                      void** request);
  NET_CLOSING_CALLS;
  net_result (*make_virtual_device)(int* device, net_virtual_device* properties);
} net_table_v9;

/* Since 9: a profiler's callback, and with it a handle for each message; connect() gets the configuration. */
typedef struct {
  const char* name;
  net_result (*init)(net_logger logger, net_profiler profiler);
  net_result (*devices)(int* count);
  net_result (*get_properties)(int device, net_properties_v10* properties);
  net_result (*listen)(int device, void* handle, void** listener);
  net_result (*connect)(int device, net_config* config, void* handle, void** sender, net_device_handle** on_device);
  NET_MEMORY_CALLS;
  net_result (*isend)(void* sender, void* data, size_t bytes, int tag, void* memory, void* profiled, void** request);
  net_result (*irecv)(void* receiver, int parts, void** data, size_t* bytes, int* tags, void** memories,
                      void** profiled, void** request);
  NET_CLOSING_CALLS;
  net_result (*make_virtual_device)(int* device, net_virtual_device* properties);
} net_table_v10;

/* Since 10: init() makes a context for each communicator, with its configuration; finalize() ends it. */
typedef struct {
  const char* name;
  net_result (*init)(void** context, uint64_t communicator, net_config* config, net_logger logger,
                     net_profiler profiler);
  net_result (*devices)(int* count);
  net_result (*get_properties)(int device, net_properties_v11* properties);
  net_result (*listen)(void* context, int device, void* handle, void** listener);
  net_result (*connect)(void* context, int device, void* handle, void** sender, net_device_handle** on_device);
  NET_MEMORY_CALLS;
  net_result (*isend)(void* sender, void* data, size_t bytes, int tag, void* memory, void* profiled, void** request);
  net_result (*irecv)(void* receiver, int parts, void** data, size_t* bytes, int* tags, void** memories,
                      void** profiled, void** request);
  NET_CLOSING_CALLS;
  net_result (*make_virtual_device)(int* device, net_virtual_device* properties);
  net_result (*finalize)(void* context);
  net_result (*set_net_attr)(void* context, net_attributes* attributes);
} net_table_v11;

#ifdef __cplusplus
}
#endif

#endif
