// The timeline page's own files, from web/: page.html, the style and the scripts.
#pragma once

#include <span>

#include "base/embedded.hpp"

namespace slip {

std::span<const EmbeddedFile> embedded_page();

}  // namespace slip
