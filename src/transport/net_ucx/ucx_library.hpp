// UCX's library, loaded with dlopen when it is first needed: libucp.so.0, or the file that SLIP_UCX_LIBRARY names. The
// headers of UCX are needed to compile this, the library only to run it.
//
// UCX would install signal handlers when it is loaded, and print warnings. If this process loads it here first, the
// signals keep their handlers, and UCX prints fatal errors only. The user's UCX_HANDLE_ERRORS, UCX_ERROR_SIGNALS and
// UCX_LOG_LEVEL have priority.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace slip::transport {

struct UcxLibrary {
  std::string text;  // "UCX 1.13.1 (/usr/lib/libucp.so.0)"

  decltype(&::ucp_get_version) get_version = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_context_query) context_query = nullptr;
  decltype(&::ucp_context_print_info) context_print_info = nullptr;
  decltype(&::ucp_mem_map) mem_map = nullptr;
  decltype(&::ucp_mem_unmap) mem_unmap = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close = nullptr;
  decltype(&::ucp_worker_flush_nbx) worker_flush = nullptr;
  decltype(&::ucp_tag_send_nbx) tag_send = nullptr;
  decltype(&::ucp_tag_recv_nbx) tag_recv = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_cancel) request_cancel = nullptr;
};

struct UcxSearch {
  const UcxLibrary* loaded = nullptr;  // lives as long as the process; null: see `problem`
  std::string problem;                 // names the library, and the symbol if one is missing
};

UcxSearch find_ucx();  // loads the library at the first call

}  // namespace slip::transport
