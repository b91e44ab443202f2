// What a UniqueId is made of.
#pragma once

#include <cstdint>
#include <string>

#include "slip/unique_id.hpp"
#include "transport/bootstrap/secret.hpp"

namespace slip {

struct UniqueIdParts {
  std::string host;
  std::uint16_t port = 0;
  Secret secret{};
  bool rank0_listens = false;

  static UniqueIdParts of(const UniqueId& id);
  UniqueId id() const;
};

}  // namespace slip
