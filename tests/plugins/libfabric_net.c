/* A network plug-in of NCCL on libfabric (provider tcp), for the tests of our loader: it shares no code with
   Slipstream. It has version 9 of the interface. Each end of a connection has an endpoint of its own (FI_EP_RDM, tagged
   messages); libfabric matches sends and receives of one tag in their order. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdlib.h>
#include <string.h>

#include "transport/net_plugin/nccl_net.h"

enum { MAX_PARTS = 8, MAX_OPS = 512, ADDRESS_BYTES = 64 };
#define CONNECT_TAG (1ULL << 40) /* above all tags of messages, which have 32 bits */

static net_logger logger;
static struct fi_info* info; /* of the network, found once: that takes long */
#define WARN(...) logger(NET_LOG_WARN, NET_LOG_OF_NET, __FILE__, __LINE__, __VA_ARGS__)

struct address {
  uint32_t bytes;
  char text[ADDRESS_BYTES];
};

/* What listen() gives to the peer. connect() keeps its state in it, as other plug-ins do. */
struct handle {
  struct address address;
  struct comm* state;
};
_Static_assert(sizeof(struct handle) <= NET_HANDLE_BYTES, "the handle fits");

struct op {
  struct fi_context2 context; /* must be the first member */
  struct comm* comm;
  int used, done, error;
  size_t bytes;
  /* If the provider cannot take the operation now, test() tries again. */
  int posted, sends;
  void* data;
  size_t room;
  uint64_t tag;
};

struct request {
  int used, count;
  struct op* ops[MAX_PARTS];
};

struct comm {
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_ep* ep;
  fi_addr_t peer;
  struct address own, hello; /* hello: the address of the sender, which it sends first */
  struct op* greeting;
  int error;
  struct op ops[MAX_OPS];
  struct request requests[MAX_OPS];
};

static net_result fail(const char* what, long error) {
  WARN("%s failed: %s", what, fi_strerror((int)(error < 0 ? -error : error)));
  return NET_SYSTEM_ERROR;
}

static struct fi_info* find(void) {
  struct fi_info *hints = fi_allocinfo(), *found = NULL;
  hints->caps = FI_TAGGED | FI_MSG;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->addr_format = FI_SOCKADDR_IN;
  hints->fabric_attr->prov_name = strdup("tcp");
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  const int error = fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found);
  fi_freeinfo(hints);
  return error == 0 ? found : NULL;
}

/* The first network that is not the loopback; the loopback if there is no other. */
static struct fi_info* best(struct fi_info* all) {
  struct fi_info* one = all;
  while (one && strcmp(one->domain_attr->name, "lo") == 0) one = one->next;
  return one ? one : all;
}

static void close_all(struct comm* comm) {
  if (comm->ep) fi_close(&comm->ep->fid);
  if (comm->cq) fi_close(&comm->cq->fid);
  if (comm->av) fi_close(&comm->av->fid);
  if (comm->domain) fi_close(&comm->domain->fid);
  if (comm->fabric) fi_close(&comm->fabric->fid);
  free(comm);
}

static net_result open_comm(struct comm** made) {
  struct comm* comm = calloc(1, sizeof(*comm));
  struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_TAGGED, .size = MAX_OPS, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av = {.type = FI_AV_TABLE};
  long error = fi_fabric(info->fabric_attr, &comm->fabric, NULL);
  if (!error) error = fi_domain(comm->fabric, info, &comm->domain, NULL);
  if (!error) error = fi_av_open(comm->domain, &av, &comm->av, NULL);
  if (!error) error = fi_cq_open(comm->domain, &cq, &comm->cq, NULL);
  if (!error) error = fi_endpoint(comm->domain, info, &comm->ep, NULL);
  if (!error) error = fi_ep_bind(comm->ep, &comm->av->fid, 0);
  if (!error) error = fi_ep_bind(comm->ep, &comm->cq->fid, FI_SEND | FI_RECV);
  if (!error) error = fi_enable(comm->ep);
  size_t bytes = ADDRESS_BYTES;
  if (!error) error = fi_getname(&comm->ep->fid, comm->own.text, &bytes);
  comm->own.bytes = (uint32_t)bytes;
  if (error) {
    close_all(comm);
    return fail("opening an endpoint", error);
  }
  *made = comm;
  return NET_SUCCESS;
}

static net_result set_peer(struct comm* comm, const struct address* address) {
  const int inserted = fi_av_insert(comm->av, address->text, 1, &comm->peer, 0, NULL);
  return inserted == 1 ? NET_SUCCESS : fail("fi_av_insert", inserted);
}

static struct op* new_op(struct comm* comm, int sends, void* data, size_t bytes, uint64_t tag) {
  for (int i = 0; i < MAX_OPS; ++i) {
    struct op* op = &comm->ops[i];
    if (op->used) continue;
    *op = (struct op){.comm = comm, .used = 1, .sends = sends, .data = data, .room = bytes, .tag = tag};
    return op;
  }
  return NULL;
}

static net_result post(struct op* op) {
  struct comm* comm = op->comm;
  const ssize_t error = op->sends
                            ? fi_tsend(comm->ep, op->data, op->room, NULL, comm->peer, op->tag, &op->context)
                            : fi_trecv(comm->ep, op->data, op->room, NULL, FI_ADDR_UNSPEC, op->tag, 0, &op->context);
  if (error == -FI_EAGAIN) return NET_SUCCESS;
  if (error) return fail(op->sends ? "fi_tsend" : "fi_trecv", error);
  op->posted = 1;
  return NET_SUCCESS;
}

static net_result poll_cq(struct comm* comm) {
  struct fi_cq_tagged_entry entries[16];
  const ssize_t count = fi_cq_read(comm->cq, entries, 16);
  for (ssize_t i = 0; i < count; ++i) {
    struct op* op = entries[i].op_context;
    op->bytes = op->sends ? op->room : entries[i].len;
    op->done = 1;
  }
  if (count == -FI_EAVAIL) {
    struct fi_cq_err_entry entry = {0};
    if (fi_cq_readerr(comm->cq, &entry, 0) != 1) return fail("fi_cq_readerr", FI_EIO);
    if (entry.op_context) ((struct op*)entry.op_context)->error = entry.err;
    else comm->error = entry.err;
    if (entry.op_context) ((struct op*)entry.op_context)->done = 1;
  } else if (count < 0 && count != -FI_EAGAIN) {
    return fail("fi_cq_read", count);
  }
  return NET_SUCCESS;
}

static net_result init(net_logger log) {
  logger = log;
  setenv("FI_PROVIDER", "tcp", 0); /* or libfabric would initialise all its providers */
  if (!info) info = best(find());
  return info ? NET_SUCCESS : fail("fi_getinfo for the provider tcp", FI_ENODATA);
}

static net_result devices(int* count) {
  *count = 1;
  return NET_SUCCESS;
}

static net_result get_properties(int device, net_properties_v9* properties) {
  (void)device;
  memset(properties, 0, sizeof(*properties));
  properties->name = "fabric0";
  properties->ptr_support = NET_PTR_HOST;
  properties->speed = 10000;
  properties->max_comms = 1024;
  properties->max_recvs = MAX_PARTS;
  properties->virtual_device.ndevs = 1;
  properties->max_p2p_bytes = properties->max_coll_bytes = 1 << 30;
  return NET_SUCCESS;
}

static net_result listen_at(int device, void* opaque, void** listener) {
  (void)device;
  struct handle* handle = opaque;
  struct comm* comm = NULL;
  const net_result result = open_comm(&comm);
  if (result != NET_SUCCESS) return result;
  memset(handle, 0, sizeof(*handle));
  handle->address = comm->own;
  comm->greeting = new_op(comm, 0, &comm->hello, sizeof(comm->hello), CONNECT_TAG);
  *listener = comm;
  return post(comm->greeting);
}

static net_result connect_to(int device, void* opaque, void** sender, net_device_handle** on_device) {
  (void)device;
  (void)on_device;
  struct handle* handle = opaque;
  *sender = NULL;
  if (!handle->state) {
    net_result result = open_comm(&handle->state);
    if (result == NET_SUCCESS) result = set_peer(handle->state, &handle->address);
    if (result != NET_SUCCESS) return result;
    handle->state->greeting = new_op(handle->state, 1, &handle->state->own, sizeof(handle->state->own), CONNECT_TAG);
  }
  struct comm* comm = handle->state;
  if (!comm->greeting->posted) {
    const net_result result = post(comm->greeting);
    if (result != NET_SUCCESS) return result;
  }
  const net_result result = poll_cq(comm);
  if (result != NET_SUCCESS) return result;
  if (comm->greeting->error) return fail("the first message", comm->greeting->error);
  if (!comm->greeting->done) return NET_SUCCESS;
  comm->greeting->used = 0;
  handle->state = NULL;
  *sender = comm;
  return NET_SUCCESS;
}

/* The listener becomes the receiver: it accepts one connection. */
static net_result accept_one(void* listener, void** receiver, net_device_handle** on_device) {
  (void)on_device;
  struct comm* comm = listener;
  *receiver = NULL;
  const net_result result = poll_cq(comm);
  if (result != NET_SUCCESS) return result;
  if (!comm->greeting || !comm->greeting->done) return NET_SUCCESS;
  if (comm->greeting->error) return fail("the first message", comm->greeting->error);
  comm->greeting->used = 0;
  comm->greeting = NULL;
  *receiver = comm;
  return set_peer(comm, &comm->hello);
}

static net_result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) {
  (void)data;
  (void)bytes;
  if (type != NET_PTR_HOST) return NET_INVALID_USAGE;
  *memory = comm; /* the provider tcp needs no registration */
  return NET_SUCCESS;
}

static net_result dereg_mr(void* comm, void* memory) { return comm == memory ? NET_SUCCESS : NET_INTERNAL_ERROR; }

static struct request* new_request(struct comm* comm) {
  for (int i = 0; i < MAX_OPS; ++i) {
    if (comm->requests[i].used) continue;
    comm->requests[i] = (struct request){.used = 1};
    return &comm->requests[i];
  }
  return NULL;
}

static net_result isend(void* sender, void* data, size_t bytes, int tag, void* memory, void** request) {
  struct comm* comm = sender;
  struct request* one = memory == sender ? new_request(comm) : NULL;
  *request = NULL;
  if (!one) return NET_INTERNAL_ERROR;
  one->count = 1;
  one->ops[0] = new_op(comm, 1, data, bytes, (uint32_t)tag);
  *request = one;
  return post(one->ops[0]);
}

static net_result irecv(void* receiver, int count, void** data, size_t* bytes, int* tags, void** memories,
                        void** request) {
  struct comm* comm = receiver;
  struct request* one = memories[0] == receiver && count <= MAX_PARTS ? new_request(comm) : NULL;
  *request = NULL;
  if (!one) return NET_INTERNAL_ERROR;
  one->count = count;
  for (int i = 0; i < count; ++i) {
    one->ops[i] = new_op(comm, 0, data[i], bytes[i], (uint32_t)tags[i]);
    const net_result result = post(one->ops[i]);
    if (result != NET_SUCCESS) return result;
  }
  *request = one;
  return NET_SUCCESS;
}

static net_result iflush(void* receiver, int count, void** data, int* bytes, void** memories, void** request) {
  (void)receiver;
  (void)count;
  (void)data;
  (void)bytes;
  (void)memories;
  *request = NULL;
  return NET_SUCCESS;
}

static net_result test(void* opaque, int* done, int* bytes) {
  struct request* request = opaque;
  struct comm* comm = request->ops[0]->comm;
  *done = 0;
  for (int i = 0; i < request->count; ++i) {
    const net_result result = request->ops[i]->posted ? NET_SUCCESS : post(request->ops[i]);
    if (result != NET_SUCCESS) return result;
  }
  const net_result result = poll_cq(comm);
  if (result != NET_SUCCESS) return result;
  if (comm->error) return fail("the connection", comm->error);
  for (int i = 0; i < request->count; ++i) {
    struct op* op = request->ops[i];
    if (op->error == FI_ETRUNC) {
      WARN("a message with tag %d is longer than its receive, which has room for %zu bytes", (int)op->tag, op->room);
      return NET_INVALID_USAGE;
    }
    if (op->error) return fail(op->sends ? "a send" : "a receive", op->error);
    if (!op->done) return NET_SUCCESS;
  }
  for (int i = 0; i < request->count; ++i) {
    if (bytes) bytes[i] = (int)request->ops[i]->bytes;
    request->ops[i]->used = 0;
  }
  request->used = 0;
  *done = 1;
  return NET_SUCCESS;
}

static net_result close_comm(void* comm) {
  close_all(comm);
  return NET_SUCCESS;
}

static net_result close_listen(void* listener) {
  struct comm* comm = listener;
  if (comm->greeting) close_all(comm); /* otherwise it is a receiver now */
  return NET_SUCCESS;
}

const net_table_v9 ncclNetPlugin_v9 = {
    .name = "LibfabricTest",
    .init = init,
    .devices = devices,
    .get_properties = get_properties,
    .listen = listen_at,
    .connect = connect_to,
    .accept = accept_one,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close_send = close_comm,
    .close_recv = close_comm,
    .close_listen = close_listen,
};
